//! TLS to PostgreSQL.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use tidewater_centre::CentreError;
use tidewater_centre_postgres::connect;
use tidewater_testing::Postgres;
use tidewater_testing::postgres::connect as connect_application;

/// A server with a certificate for `localhost`, and the PEM of who issued it.
fn certified() -> (Postgres, String) {
    let mut issuer = CertificateParams::new(Vec::new()).unwrap();
    issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let server = Postgres::start().unwrap();
    let folder = server.data_directory();
    let owner = fs::metadata(&folder).unwrap();
    for (name, content) in [
        ("server.crt", certificate.pem()),
        ("server.key", key.serialize_pem()),
    ] {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    server
        .execute("postgres", "ALTER SYSTEM SET ssl = on")
        .unwrap();
    (server, issuer.pem())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_and_certificates_are_checked_as_the_url_says() {
    let (mut server, issuer) = tokio::task::spawn_blocking(certified).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (root, other) = (
        folder.path().join("root.pem"),
        folder.path().join("other.pem"),
    );
    fs::write(&root, issuer).unwrap();
    let stranger = rcgen::generate_simple_self_signed(["stranger".to_owned()]).unwrap();
    fs::write(&other, stranger.cert.pem()).unwrap();
    let url = server.url("postgres");
    let by_name = url.replace("127.0.0.1", "localhost");
    // Not before the reload has taken effect: a restart is sure.
    let error = connect(&format!("{url}?sslmode=require")).await;
    assert!(matches!(
        error.err(),
        Some(CentreError::Configuration { message, .. }) if message.contains("does not support TLS")
    ));
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let application = connect_application(&url).await.unwrap();
    let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                     WHERE s.ssl AND a.application_name = 'tidewater'";
    let (root, other) = (root.display(), other.display());
    for (url, speaks) in [
        (url.clone(), false),
        (format!("{url}?sslmode=disable"), false),
        (format!("{url}?sslmode=require"), true),
        (format!("{url}?sslmode=require&sslrootcert={root}"), true),
        (format!("{url}?sslmode=verify-ca&sslrootcert={root}"), true),
        (
            format!("{by_name}?sslmode=verify-full&sslrootcert={root}"),
            true,
        ),
    ] {
        let centre = connect(&url).await.unwrap();
        let worker = centre.worker().await.unwrap();
        let count: i64 = application.query_one(encrypted, &[]).await.unwrap().get(0);
        assert_eq!(count > 0, speaks, "{url}");
        drop((worker, centre));
        while application
            .query_one(encrypted, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            > 0
        {}
    }
    for url in [
        format!("{url}?sslmode=verify-full&sslrootcert={root}"),
        format!("{url}?sslmode=verify-ca&sslrootcert={other}"),
        format!("{url}?sslmode=require&sslrootcert={other}"),
        format!("{by_name}?sslmode=verify-full"),
        format!("{by_name}?sslmode=verify-full&sslrootcert=system"),
    ] {
        let Err(error) = connect(&url).await else {
            panic!("{url} is trusted");
        };
        assert!(
            error.to_string().contains("is not trusted"),
            "{url}: {error}"
        );
        assert!(error.hint().contains("sslrootcert"));
    }
    drop(server);
}
