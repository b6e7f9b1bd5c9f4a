//! What is recorded of publications.

use super::*;
use crate::publication::{
    ActAs, IdentitySpec, OnReject, ParameterSpec, ReplayPolicy, RuleBy, RuleSpec, UploadMode,
    UploadOrder, WindowLength, WindowSpec, WindowUnit, WriteScopeSpec, WritesSpec,
};
use tidewater_protocol::Direction;

#[test]
fn what_is_recorded_is_what_was_configured() {
    let table = |direction, tracking, partition| TableSpec {
        name: "hr.\"odd\"".into(),
        partition,
        direction,
        columns: Some(vec!["a".into()]),
        tracking,
        on_unseen_children: crate::publication::OnUnseenChildren::Cascade,
        identity: Some(IdentitySpec {
            column: "a".into(),
            block: 10,
            refill_below: 2,
        }),
        filled_by_centre: vec!["b".into()],
        writes: WritesSpec {
            scope: Some(WriteScopeSpec {
                columns: vec!["a".into()],
                values: "SELECT {s.username}".into(),
            }),
            read_only: vec!["b".into()],
            hand_over: true,
        },
        conflict: crate::publication::ConflictSpec::default(),
        handled: crate::publication::HandledSpec::default(),
    };
    let window = |last| {
        Some(WindowSpec {
            column: "day".into(),
            last,
        })
    };
    let rules = vec![
        RuleSpec::everyone(),
        RuleSpec {
            window: window(WindowLength::Time(90, WindowUnit::Days)),
            ..RuleSpec::columns(&["a", "b"], "SELECT 'x', {s.username}")
        },
        RuleSpec {
            window: window(WindowLength::Number(7)),
            by: RuleBy::Follows {
                table: "parent".into(),
                by: Some(vec!["a".into()]),
            },
        },
    ];
    let spec = PublicationSpec {
        scripts: Vec::new(),
        upload: UploadMode::Net,
        on_reject: OnReject::Abort,
        upload_order: UploadOrder::RowsFirst,
        script_versions: Vec::new(),
        replay: ReplayPolicy::No,
        name: "p".into(),
        act_as: Some(ActAs::Query("SELECT 'clerk'".into())),
        tables: vec![
            table(Direction::Both, TrackingMode::Log, rules),
            table(Direction::Download, TrackingMode::Row, Vec::new()),
            table(Direction::Upload, TrackingMode::Off, Vec::new()),
        ],
        parameters: vec![ParameterSpec {
            name: "month".into(),
            allowed: Some("SELECT '2026-11'".into()),
        }],
    };
    let recorded = definition(&spec).unwrap();
    assert_eq!(recorded_spec(&recorded).unwrap(), spec);
    assert!(recorded_spec("{}").is_err());
}
