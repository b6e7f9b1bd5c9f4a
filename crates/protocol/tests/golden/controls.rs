//! The control messages of the vectors, each kind at least once.

use tidewater_protocol::message::*;
use tidewater_protocol::*;

use super::*;

pub(super) fn controls() -> Vec<(&'static str, Control)> {
    let subscription = HelloSubscription {
        publication: "sales".into(),
        sequence: 6,
        upload_id: vec![1; 16],
        pending_upload_id: vec![2; 16],
        checkpoint: vec![3; 5],
        schema_hash: vec![4; 32],
        compares: false,
        ..Default::default()
    };
    let sign_in = |proof| {
        Control::SignIn(Box::new(SignIn {
            protocol_version: VERSION,
            remote_id: vec![7; 16],
            user: "jane".into(),
            proof: Some(proof),
            client: "golden/1".into(),
            centre: "01ab".into(),
            is_program: false,
            device_name: String::new(),
        }))
    };
    let named = Control::SignIn(Box::new(SignIn {
        protocol_version: VERSION,
        user: "jane".into(),
        proof: Some(Proof::Token(vec![9, 9])),
        device_name: "Jane's van".into(),
        ..Default::default()
    }));
    let signed_in = |user: &str| {
        Control::SignedIn(Box::new(SignedIn {
            protocol_version: VERSION,
            remote_id: vec![7; 16],
            token: vec![1, 2],
            credential: vec![3; 32],
            server: "tidewater/0.1.0".into(),
            centre: "01ab".into(),
            user: user.into(),
            above: Vec::new(),
            message_bytes: 0,
        }))
    };
    let hello = Hello {
        subscriptions: vec![subscription],
    };
    vec![
        ("sign-in-token", sign_in(Proof::Token(vec![9, 9]))),
        ("sign-in-named", named),
        (
            "sign-in-credential",
            sign_in(Proof::Credential(vec![8; 32])),
        ),
        (
            "sign-in-password",
            sign_in(Proof::Password("secret".into())),
        ),
        (
            "sign-in-bearer",
            sign_in(Proof::Bearer("eyJ.eyJ.c2ln".into())),
        ),
        ("sign-in-certificate", sign_in(Proof::Certificate(true))),
        (
            "sign-in-password-change",
            sign_in(Proof::PasswordChange(PasswordChange {
                password: "secret".into(),
                new_password: "secret too".into(),
            })),
        ),
        ("signed-in", signed_in("")),
        ("signed-in-user", signed_in("jane")),
        (
            "signed-in-above",
            Control::SignedIn(Box::new(SignedIn {
                above: vec!["02cd".into(), "03ef".into()],
                message_bytes: 0,
                ..match signed_in("") {
                    Control::SignedIn(signed_in) => *signed_in,
                    other => panic!("{other:?}"),
                }
            })),
        ),
        ("hello", Control::Hello(hello)),
        (
            "welcome",
            Control::Welcome(Welcome {
                subscriptions: vec![WelcomeSubscription {
                    upload_state: UploadState::AlreadyApplied as i32,
                    schema: vec![5, 6],
                    ..Default::default()
                }],
                ..Default::default()
            }),
        ),
        (
            "upload-begin",
            Control::UploadBegin(UploadBegin {
                subscription: 1,
                sequence: 7,
                upload_id: vec![2; 16],
                rows: 1000,
                bytes: 92_000,
                ..Default::default()
            }),
        ),
        (
            "table-begin",
            Control::TableBegin(TableBegin {
                replace: true,
                expected_rows: 12,
                ..TableBegin::for_table(&publication().tables[0])
            }),
        ),
        (
            "table-begin-key",
            Control::TableBegin(TableBegin {
                key: vec![2, 0],
                ..TableBegin::for_table(&publication().tables[0])
            }),
        ),
        (
            "upload-end",
            Control::UploadEnd(UploadEnd {
                inserts: 1,
                updates: 2,
                deletes: 3,
                checksum: 0xdead_beef,
                abandoned: true,
            }),
        ),
        (
            "request-begin",
            Control::RequestBegin(RequestBegin { subscription: 2 }),
        ),
        (
            "download-request",
            Control::DownloadRequest(DownloadRequest { upload_only: true }),
        ),
        (
            "result-begin",
            Control::ResultBegin(ResultBegin {
                subscription: 1,
                sequence: 7,
                upload_id: vec![2; 16],
            }),
        ),
        (
            "result-end",
            Control::ResultEnd(ResultEnd {
                inserts: 1,
                updates: 2,
                deletes: 3,
                conflicts: 4,
                refused: 5,
                checksum: 6,
                ..ResultEnd::default()
            }),
        ),
        (
            "download-begin",
            Control::DownloadBegin(DownloadBegin {
                subscription: 1,
                scope_changed: true,
                ..Default::default()
            }),
        ),
        (
            "download-end",
            Control::DownloadEnd(DownloadEnd {
                checkpoint: vec![1, 2, 3],
                upserts: 4,
                removals: 5,
                checksum: 6,
            }),
        ),
        (
            "download-begin-resumed",
            Control::DownloadBegin(DownloadBegin {
                checkpoint: vec![1, 2, 3],
                resumed: true,
                ..Default::default()
            }),
        ),
        (
            "download-mark",
            Control::DownloadMark(DownloadMark {
                mark: vec![7, 8],
                checksum: 9,
                rows: 0,
            }),
        ),
        ("sync-end", Control::SyncEnd(SyncEnd {})),
        ("ack", Control::Ack(Ack {})),
        (
            "busy",
            Control::Busy(Busy {
                retry_after_ms: 1500,
            }),
        ),
        (
            "failure",
            Control::Failure(FailureNotice {
                retry_after_ms: 250,
                ..FailureNotice::new(
                    Code::RemoteRevoked,
                    "this remote was revoked",
                    "ask your administrator",
                )
            }),
        ),
        (
            "credit",
            Control::Credit(Credit {
                channel: 1,
                bytes: 1 << 20,
            }),
        ),
        ("ping", Control::Ping(Ping { nonce: 42 })),
        (
            "pong",
            Control::Pong(Pong {
                nonce: 42,
                server: "tidewater/0.1.0".into(),
                protocol_version: VERSION,
            }),
        ),
        (
            "waiting",
            Control::Waiting(SyncWaiting {
                ahead: 17,
                handler: false,
            }),
        ),
        (
            "waiting-handler",
            Control::Waiting(SyncWaiting {
                ahead: 0,
                handler: true,
            }),
        ),
        ("cancel", Control::Cancel(SyncCancel {})),
    ]
}

/// What is said of compares and of restored centres.
pub(super) fn controls_at_odds() -> Vec<(&'static str, Control)> {
    let welcome = |answer| {
        Control::Welcome(Welcome {
            subscriptions: vec![answer],
            ..Default::default()
        })
    };
    vec![
        (
            "hello-compares",
            Control::Hello(Hello {
                subscriptions: vec![HelloSubscription {
                    publication: "sales".into(),
                    compares: true,
                    ..Default::default()
                }],
            }),
        ),
        (
            "hello-parameters",
            Control::Hello(Hello {
                subscriptions: vec![HelloSubscription {
                    publication: "sales".into(),
                    parameters: vec![SubscriptionParameter {
                        name: "month".into(),
                        value: "2026-11".into(),
                    }],
                    ..Default::default()
                }],
            }),
        ),
        (
            "welcome-centre-restored",
            welcome(WelcomeSubscription {
                upload_state: UploadState::CentreRestored as i32,
                sequence: 6,
                upload_id: vec![1; 16],
                ..Default::default()
            }),
        ),
        (
            "welcome-new-identity",
            Control::Welcome(Welcome {
                subscriptions: vec![WelcomeSubscription {
                    upload_state: UploadState::NewIdentity as i32,
                    ..Default::default()
                }],
                remote_id: vec![7; 16],
                credential: vec![3; 32],
            }),
        ),
        (
            "welcome-compare",
            welcome(WelcomeSubscription {
                compare: true,
                ..Default::default()
            }),
        ),
        (
            "hello-formers",
            Control::Hello(Hello {
                subscriptions: vec![HelloSubscription {
                    publication: "sales".into(),
                    formers: vec![FormerId {
                        remote_id: vec![6; 16],
                        sequence: 6,
                        upload_id: vec![1; 16],
                    }],
                    ..Default::default()
                }],
            }),
        ),
        (
            "hello-numbers",
            Control::Hello(Hello {
                subscriptions: vec![HelloSubscription {
                    publication: "sales".into(),
                    numbers: vec![tidewater_protocol::message::NumbersLeft {
                        table: "invoice".into(),
                        left: 199,
                    }],
                    ..Default::default()
                }],
            }),
        ),
        (
            "welcome-numbers",
            welcome(WelcomeSubscription {
                blocks: vec![tidewater_protocol::message::NumberBlock {
                    table: "invoice".into(),
                    first: 1001,
                    last: 2000,
                }],
                ..Default::default()
            }),
        ),
        (
            "hello-refused",
            Control::Hello(Hello {
                subscriptions: vec![HelloSubscription {
                    publication: "sales".into(),
                    refused_from: 5,
                    settled_after: 77,
                    ..Default::default()
                }],
            }),
        ),
        (
            "hello-verified",
            Control::Hello(Hello {
                subscriptions: vec![HelloSubscription {
                    publication: "sales".into(),
                    verified: Some(VerifiedTables {
                        tables: vec![VerifiedTable {
                            table: "customer".into(),
                            missing: 1,
                            extra: 0,
                            different: 2,
                            keys: vec!["[13]".into(), "[14]".into()],
                        }],
                    }),
                    ..Default::default()
                }],
            }),
        ),
        (
            "download-begin-verify",
            Control::DownloadBegin(DownloadBegin {
                verify: true,
                ..Default::default()
            }),
        ),
        (
            "download-begin-uncompared",
            Control::DownloadBegin(DownloadBegin {
                uncompared: vec![UncomparedTable {
                    table: "customer".into(),
                    reason: UncomparedReason::Script.into(),
                }],
                ..Default::default()
            }),
        ),
        (
            "compare-table-untracked",
            Control::CompareTable(CompareTable {
                untracked: true,
                ..Default::default()
            }),
        ),
        (
            "table-begin-deletes-unknown",
            Control::TableBegin(TableBegin {
                table: "customer".into(),
                replace: true,
                follows_changes: true,
                deletes_unknown: true,
                ..Default::default()
            }),
        ),
        (
            "upload-begin-given-up",
            Control::UploadBegin(UploadBegin {
                sequence: 7,
                upload_id: vec![2; 16],
                given_up: vec![GivenUp {
                    table: "customer".into(),
                    key: "[13]".into(),
                    sequence: 5,
                }],
                ..Default::default()
            }),
        ),
        (
            "upload-begin-retried",
            Control::UploadBegin(UploadBegin {
                sequence: 7,
                upload_id: vec![2; 16],
                retried: vec![3, 700],
                ..Default::default()
            }),
        ),
        (
            "upload-begin-forgotten",
            Control::UploadBegin(UploadBegin {
                sequence: 7,
                upload_id: vec![2; 16],
                forgotten_refusals: vec![ForgottenRefusal {
                    table: "customer".into(),
                    key: "[13]".into(),
                    values: r#"{"id":13}"#.into(),
                }],
                ..Default::default()
            }),
        ),
        (
            "upload-begin-behind",
            Control::UploadBegin(UploadBegin {
                sequence: 7,
                upload_id: vec![2; 16],
                behind_bytes: 70_000,
                ..Default::default()
            }),
        ),
        (
            "welcome-received",
            welcome(WelcomeSubscription {
                received_bytes: 70_000,
                received_checksum: 9,
                ..Default::default()
            }),
        ),
        (
            "download-begin-settled",
            Control::DownloadBegin(DownloadBegin {
                settled: vec![SettledRefusal {
                    table: "customer".into(),
                    key: "[13]".into(),
                    sequence: 5,
                    at_ms: 1_700_000_000_000,
                    by: "olga".into(),
                    outcome: "edited".into(),
                }],
                settled_after: 78,
                deployment: 3 << 32,
                keeps_refused: true,
                ..Default::default()
            }),
        ),
        (
            "welcome-formers",
            welcome(WelcomeSubscription {
                upload_state: UploadState::CentreRestored as i32,
                formers: vec![3, 0],
                ..Default::default()
            }),
        ),
        (
            "upload-begin-given-back",
            Control::UploadBegin(UploadBegin {
                sequence: 7,
                upload_id: vec![2; 16],
                rows: 1,
                bytes: 9,
                given_back: true,
                copied: false,
                ..Default::default()
            }),
        ),
        (
            "table-begin-ranges",
            Control::TableBegin(TableBegin {
                replace: true,
                ranges: vec![
                    KeyInterval {
                        after: Vec::new(),
                        until: range_key(&key()),
                    },
                    KeyInterval {
                        after: range_key(&later_key()),
                        until: Vec::new(),
                    },
                ],
                ..TableBegin::for_table(&publication().tables[0])
            }),
        ),
        (
            "result-end-compare",
            Control::ResultEnd(ResultEnd {
                inserts: 1,
                compare: true,
                ..ResultEnd::default()
            }),
        ),
        (
            "table-begin-follows-changes",
            Control::TableBegin(TableBegin {
                replace: true,
                ranges: vec![KeyInterval {
                    after: range_key(&key()),
                    until: Vec::new(),
                }],
                follows_changes: true,
                ..TableBegin::for_table(&publication().tables[0])
            }),
        ),
        (
            "table-begin-keyless-rows",
            Control::TableBegin(TableBegin {
                keyless_rows: 3,
                ..TableBegin::for_table(&publication().tables[0])
            }),
        ),
        (
            "compare-table",
            Control::CompareTable(CompareTable {
                subscription: 1,
                table: Some(Box::new(TableBegin::for_table(&publication().tables[0]))),
                ranges: vec![
                    KeyRange {
                        until: range_key(&key()),
                        rows: 300,
                        checksum: 0x0123_4567_89ab_cdef,
                    },
                    KeyRange {
                        until: Vec::new(),
                        rows: 1,
                        checksum: 2,
                    },
                ],
                ..CompareTable::default()
            }),
        ),
    ]
}
