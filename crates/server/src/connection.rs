//! A connection from its SignIn to its end.
//!
//! Owns who is on the other side: channel 0. What channel 1 carries is the session's.

use std::sync::Arc;

use tokio::time::timeout;

use tidewater_protocol::message::{Control, Proof, SignIn, SignedIn};

use crate::fault::Fault;
use crate::link::{Event, Link, SERVER_NAME};
use crate::server::Shared;
use crate::session::{self, Arrival, LookedUp};
use crate::sign_in::{self, Claim, Guest};

/// Serves a connection until it ends. What remains to be sent is left in the link.
pub(crate) async fn run(server: &Arc<Shared>, link: &Link, peer: &str) {
    let served = async {
        let (guest, arrival) = admit(server, link, peer).await?;
        let stay = server.guests.enter(guest.remote_id);
        session::run(server, link, &guest, &stay, arrival).await
    };
    if let Err(fault) = served.await
        && !fault.silent
    {
        tracing::debug!(peer, code = %fault.code, "{fault}");
        // A message of a few hundred bytes fits into a frame.
        let _ = link.send_own(fault.to_control());
        link.flush();
    }
}

/// Signs a remote in, and looks up what its Hello asks, if that has come with the SignIn.
async fn admit(
    server: &Arc<Shared>,
    link: &Link,
    peer: &str,
) -> Result<(Guest, Option<Arrival>), Fault> {
    let sign_in = first_message(server, link).await.inspect_err(|fault| {
        if !fault.is_gone() {
            tracing::warn!(peer, code = %fault.code, "a connection without a sign-in: {fault}");
        }
    })?;
    let (user, client) = (sign_in.user.clone(), sign_in.client.clone());
    let arrival = link
        .try_hello()
        .map(|hello| Arrival::of(hello, server, link));
    let signing_in = async {
        let claim = Claim::check(sign_in)?;
        let entering = timeout(
            server.limits.sync,
            enter(server, link, claim, arrival, peer),
        );
        let entered = tokio::select! {
            biased;
            () = server.aborted() => return Err(Fault::shutting_down()),
            entered = Box::pin(entering) => entered,
        };
        entered.unwrap_or_else(|_| Err(Fault::timeout("the sign-in took too long")))
    };
    signing_in.await.inspect_err(|fault| {
        let (code, detail) = (fault.code.name(), &fault.detail);
        tracing::warn!(user, peer, client, code, error = %fault, detail, "sign-in failed");
    })
}

async fn first_message(server: &Shared, link: &Link) -> Result<SignIn, Fault> {
    let wait = async {
        match link.event().await {
            Event::SignIn(sign_in) => Ok(sign_in),
            Event::End(fault) => Err(fault),
            _ => Err(Fault::unexpected("a message before the SignIn")),
        }
    };
    tokio::select! {
        biased;
        result = timeout(server.limits.handshake, wait) => {
            result.unwrap_or_else(|_| Err(Fault::timeout("no SignIn came")))
        }
        () = server.draining() => Err(Fault::shutting_down()),
    }
}

async fn enter(
    server: &Arc<Shared>,
    link: &Link,
    claim: Claim,
    mut arrival: Option<Arrival>,
    peer: &str,
) -> Result<(Guest, Option<Arrival>), Fault> {
    let mut greeting = arrival.as_mut().and_then(|it| it.greeting.as_mut().ok());
    if greeting.is_some() && server.is_full() {
        return Err(server.busy());
    }
    let mut signed = greeting.as_ref().map_or(Vec::new(), |it| it.signed());
    if let Proof::Token(token) = &claim.proof {
        signed.push(token);
    }
    let now_ms = server.environment.clock.now_ms();
    let keyring = server.signer.keyring(&signed, now_ms).await;
    if let (Some(greeting), Some(remote_id)) = (&mut greeting, claim.remote_id) {
        greeting.verify(&keyring, remote_id);
    }
    let asked = greeting.as_ref().map_or(Vec::new(), |it| it.asked());
    let entered = sign_in::sign_in(server, &claim, asked, &keyring, peer).await?;
    link.sign_in();
    link.send_own(Control::SignedIn(SignedIn {
        protocol_version: claim.version,
        remote_id: entered.remote_id.to_vec(),
        token: entered.token,
        credential: entered.credential,
        server: SERVER_NAME.into(),
        centre: entered.state.centre.clone(),
    }))?;
    let guest = Guest {
        remote_id: entered.remote_id,
        unknown: entered.unknown,
        was: entered.was,
        user: claim.user,
        client: claim.client,
        peer: peer.to_owned(),
    };
    let state = entered.state;
    if let Some(arrival) = arrival.as_mut().filter(|it| it.greeting.is_ok()) {
        arrival.looked_up = Some(LookedUp { keyring, state });
    }
    Ok((guest, arrival))
}
