//! A connection from its first byte to its last.
//!
//! Owns who is on the other side: channel 0. What channel 1 carries is the session's; bytes are
//! the wire's.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::time::timeout;

use tidewater_carrier::listen::BlockStream;
use tidewater_connection::ChannelInput;
use tidewater_protocol::Code;
use tidewater_protocol::frame::DEFAULT_MESSAGE_BYTES;
use tidewater_protocol::message::{Control, Proof, SignIn, SignedIn};

use tidewater_centre::Caller;
use tidewater_server_live::outgoing_calls::OutgoingCalls;

use tidewater_carrier::CompressionOptions;
use tidewater_server_config::ServerLimits;
use tidewater_server_identity::registry::Registration;
use tidewater_server_identity::registry::{ConnectionRegistry, PROGRAM};
use tidewater_server_identity::sign_in::{Origin, ParsedSignIn, Principal, SignInService};
use tidewater_server_identity::signing::Signer;
use tidewater_server_jobs::admission::{Shutdown, SyncAdmission};
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::MemoryBudget;
use tidewater_server_jobs::metrics::Metrics;
use tidewater_server_jobs::metrics::Phase;
use tidewater_server_jobs::upstream::Upstream;
use tidewater_server_live::call_channel::{CallChannel, CallChannelServices};
use tidewater_server_live::event_channel;
use tidewater_server_live::socket_loop::{ConnectionChannel, SERVER_NAME, SocketLoop};
use tidewater_server_live::spaces::SpaceMember;
use tidewater_server_sync::session::{self, LookedUp, PendingHello, SyncService};

/// How long a closing connection may take to send its last words and to see the
/// remote close its side.
pub(crate) const LINGER: Duration = Duration::from_secs(3);

/// Serves connections: what that uses of the server.
pub(crate) struct ConnectionService {
    pub(crate) limits: ServerLimits,
    pub(crate) environment: Environment,
    pub(crate) budget: MemoryBudget,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<SyncAdmission>,
    pub(crate) shutdown: Shutdown,
    pub(crate) registry: Arc<ConnectionRegistry>,
    pub(crate) signer: Arc<Signer>,
    pub(crate) sign_in: Arc<SignInService>,
    pub(crate) sync: Arc<SyncService>,
    pub(crate) calls: CallChannelServices,
    /// The line to headquarters, where the server is a branch's.
    pub(crate) upstream: Upstream,
    /// How what is sent is packed.
    pub(crate) packing: RwLock<CompressionOptions>,
}

impl ConnectionService {
    /// Serves a connection until it ends.
    pub(crate) async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        origin: Origin<'_>,
    ) {
        serve(self, stream, origin).await;
    }

    /// How what is sent is packed.
    fn packing(&self) -> CompressionOptions {
        *self.packing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is sent on new connections is packed so from now on.
    pub(crate) fn set_packing(&self, packing: CompressionOptions) {
        *self.packing.write().unwrap_or_else(PoisonError::into_inner) = packing;
    }
}

/// Serves a connection until it ends.
async fn serve(
    service: &ConnectionService,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    origin: Origin<'_>,
) {
    let wire = SocketLoop::new(service.budget.of_session(), &service.limits);
    let stream = BlockStream::new(stream, service.packing(), wire.line());
    let (read_half, write_half) = split(stream);
    let mut reader = pin!(wire.read(read_half));
    let mut writer = pin!(wire.write(write_half));
    let (mut reading, mut writing) = (true, true);
    {
        let mut handlers = pin!(handle(service, &wire, origin));
        let mut time = pin!(wire.keep_time());
        let mut timed = true;
        // In this order, so that what arrives is answered in the same wake-up.
        loop {
            tokio::select! {
                biased;
                () = &mut reader, if reading => reading = false,
                () = &mut handlers => break,
                () = &mut time, if timed => timed = false,
                () = &mut writer, if writing => writing = false,
            }
        }
    }
    wire.close();
    let goodbye = async {
        while reading || writing {
            tokio::select! {
                biased;
                () = &mut reader, if reading => reading = false,
                () = &mut writer, if writing => writing = false,
            }
        }
    };
    // Whoever takes longer is cut off.
    let _ = timeout(LINGER, goodbye).await;
}

/// Signs the remote in and serves its channels. What remains to be sent is left on the wire.
async fn handle(service: &ConnectionService, wire: &SocketLoop, origin: Origin<'_>) {
    let peer = origin.peer;
    let served = async {
        let (guest, arrival) = Box::pin(admit(service, wire, origin)).await?;
        let stay = service.registry.enter(guest.remote_id, &guest.user);
        tokio::select! {
            biased;
            () = watch_own(wire) => unreachable!("it never ends"),
            ended = Box::pin(serve_channels(service, wire, &guest, &stay, arrival)) => ended,
        }
    };
    if let Err(fault) = served.await
        && !fault.silent
    {
        tracing::debug!(peer, code = %fault.code, "{fault}");
        // A message of a few hundred bytes fits into a frame.
        let _ = wire.own().send(fault.to_control());
    }
}

/// Serves syncs, calls and events beside each other until the syncs end. At a shutdown, calls that are
/// under way may finish, too.
async fn serve_channels(
    service: &ConnectionService,
    wire: &SocketLoop,
    guest: &Principal,
    stay: &Registration<'_>,
    arrival: Option<Box<PendingHello>>,
) -> Result<(), Fault> {
    let is_program = guest.remote_id == PROGRAM;
    let who = Caller {
        user: guest.user.clone(),
        remote_id: Some(guest.remote_id).filter(|_| !is_program),
    };
    let post = OutgoingCalls::new(Arc::new(who), &service.budget, service.limits.answer_bytes);
    let events = &service.calls.events;
    let member = Arc::new(SpaceMember::join(events.hub(), &guest.user));
    let desk = CallChannel::open(&service.calls, wire.calls(), &post, &member, stay);
    let mut calls = pin!(desk.run());
    let mut syncs = pin!(async {
        match is_program {
            true => session::refuse_sync(&service.sync, wire.sync(), stay).await,
            false => session::run(&service.sync, wire.sync(), guest, stay, arrival).await,
        }
    });
    let who = post.who().clone();
    let mut published = pin!(event_channel::run(
        events,
        &member,
        &who,
        wire.events(),
        stay
    ));
    let mut notices = pin!(event_channel::tell(&member, &post));
    let (mut called, mut told) = (false, false);
    let ended = loop {
        // What goes wrong on the other channels ends the syncs: under way, one is told of it.
        tokio::select! {
            biased;
            ended = &mut syncs => break ended,
            ended = &mut calls, if !called => {
                called = true;
                if let Err(fault) = ended {
                    wire.fail(fault);
                }
            }
            Err(fault) = &mut published, if !told => {
                told = true;
                wire.fail(fault);
            }
            () = &mut notices => unreachable!("it never ends"),
        }
    };
    if !called && matches!(&ended, Err(fault) if fault.code == Code::ShuttingDown) {
        tokio::select! {
            biased;
            finished = &mut calls => finished?,
            () = service.shutdown.aborted() => {}
        }
    }
    ended
}

/// Whoever is in has nothing more to say on the connection's own channel. Never ends: of what is
/// wrong the handlers hear.
async fn watch_own(wire: &SocketLoop) {
    // What was produced is the other handlers'.
    match wire.own().incoming_without_flush().await {
        Ok(ChannelInput::Control(Control::Failure(_))) => wire.fail(Fault::gone()),
        Ok(_) => wire.fail(Fault::unexpected(
            "a message on the connection's own channel",
        )),
        Err(_) => {}
    }
    std::future::pending().await
}

/// Signs a remote in, and looks up what its Hello asks, if that has come with the SignIn.
async fn admit(
    service: &ConnectionService,
    wire: &SocketLoop,
    origin: Origin<'_>,
) -> Result<(Box<Principal>, Option<Box<PendingHello>>), Fault> {
    let peer = origin.peer;
    let sign_in = first_message(service, wire.own())
        .await
        .inspect_err(|fault| {
            if !fault.is_gone() {
                tracing::warn!(peer, code = %fault.code, "a connection without a sign-in: {fault}");
            }
        })?;
    let _timer = service.metrics.timer(Phase::SignIn);
    let (user, client) = (sign_in.user.clone(), sign_in.client.clone());
    let is_hello = |it: &ChannelInput| matches!(it, ChannelInput::Control(Control::Hello(_)));
    let arrival = match wire.sync().incoming_if(is_hello) {
        Some(ChannelInput::Control(Control::Hello(hello))) => {
            Some(PendingHello::new(hello, &service.sync, wire.sync()))
        }
        _ => None,
    };
    let signing_in = async {
        let claim = ParsedSignIn::check(sign_in)?;
        let entering = timeout(
            service.limits.sync,
            enter(service, wire, claim, arrival, origin),
        );
        let entered = tokio::select! {
            biased;
            () = service.shutdown.aborted() => return Err(Fault::shutting_down()),
            entered = Box::pin(entering) => entered,
        };
        entered.unwrap_or_else(|_| Err(Fault::timeout("the sign-in took too long")))
    };
    signing_in.await.inspect_err(|fault| {
        service.metrics.sign_in_failed(fault);
        let (code, detail) = (fault.code.name(), &fault.detail);
        tracing::warn!(user, peer, client, code, error = %fault, detail, "sign-in failed");
    })
}

async fn first_message(
    service: &ConnectionService,
    own: ConnectionChannel<'_>,
) -> Result<SignIn, Fault> {
    let wait = async {
        match own.incoming().await? {
            ChannelInput::Control(Control::SignIn(sign_in)) => Ok(*sign_in),
            _ => Err(Fault::unexpected("a message before the SignIn")),
        }
    };
    tokio::select! {
        biased;
        result = timeout(service.limits.handshake, wait) => {
            result.unwrap_or_else(|_| Err(Fault::timeout("no SignIn came")))
        }
        () = service.shutdown.draining() => Err(Fault::shutting_down()),
    }
}

async fn enter(
    service: &ConnectionService,
    wire: &SocketLoop,
    claim: ParsedSignIn,
    mut arrival: Option<Box<PendingHello>>,
    origin: Origin<'_>,
) -> Result<(Box<Principal>, Option<Box<PendingHello>>), Fault> {
    if claim.is_program && arrival.is_some() {
        return Err(Fault::unexpected("a sync of a program without a file"));
    }
    let mut greeting = arrival.as_mut().and_then(|it| it.greeting.as_mut().ok());
    if greeting.is_some() && service.admission.is_full() {
        return Err(service.admission.busy());
    }
    let mut signed = greeting.as_ref().map_or(Vec::new(), |it| it.signed());
    if let Proof::Token(token) = &claim.proof {
        signed.push(token);
    }
    let now_ms = service.environment.clock.now_ms();
    let keyring = service.signer.keyring(&signed, now_ms).await;
    if let Some(greeting) = &mut greeting {
        greeting.verify(&keyring, claim.remote_id)?;
    }
    let asked = greeting.as_ref().map_or(Vec::new(), |it| it.asked());
    let entered = service
        .sign_in
        .sign_in(&claim, asked, &keyring, origin)
        .await?;
    wire.let_in();
    wire.own().send(Control::SignedIn(Box::new(SignedIn {
        protocol_version: claim.version,
        remote_id: match claim.is_program {
            true => Vec::new(),
            false => entered.remote_id.to_vec(),
        },
        token: entered.token,
        credential: entered.credential,
        server: SERVER_NAME.into(),
        centre: entered.state.centre.clone(),
        user: match entered.user == claim.user {
            true => String::new(),
            false => entered.user.clone(),
        },
        above: service.upstream.above(),
        message_bytes: match service.limits.message_bytes {
            DEFAULT_MESSAGE_BYTES => 0,
            bytes => bytes as u32,
        },
    })))?;
    let guest = Box::new(Principal {
        remote_id: entered.remote_id,
        unknown: entered.unknown,
        was: entered.was,
        user: entered.user,
        device_name: claim.device_name,
        client: claim.client,
        peer: origin.peer.to_owned(),
    });
    let state = entered.state;
    if let Some(arrival) = arrival.as_mut().filter(|it| it.greeting.is_ok()) {
        arrival.looked_up = Some(LookedUp { keyring, state });
    }
    Ok((guest, arrival))
}
