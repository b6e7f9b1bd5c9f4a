//! Deploying and undeploying.

use crate::fixture::Fixture;
use crate::world::{SHOP_DDL, World, shop};

pub async fn deploying_twice_does_nothing_the_second_time<F: Fixture>() {
    let mut world = World::<F>::new(SHOP_DDL, shop()).await;
    let report = world.deploy().await.unwrap();
    assert_eq!(report.steps, []);
}
