//! Who says who users are.

use super::*;

#[test]
fn who_says_who_users_are_is_read() {
    let head = "[server]\nconsolidated = \"sqlite:x\"\n";
    let read = |text: &str| Config::parse_with(&format!("{head}{text}"), &|_| None);
    assert_eq!(read("").unwrap().sign_in, SignInConfig::default());
    let oidc = "[[sign_in.oidc]]\nissuer = \"https://a.b/c\"\naudience = [\"t\"]\n";
    let full = "[sign_in]\ncreate_users = true\nreauthenticate_after = \"30d\"\n";
    let config = read(&format!("{full}{oidc}claims = [\"unit\"]\n"))
        .unwrap()
        .sign_in;
    assert!(config.create_users);
    assert_eq!(config.again_after, Some(Duration::from_secs(30 * 86_400)));
    let issuer = &config.oidc[0];
    let IssuerKeySource::Discovery(document) = &issuer.source else {
        panic!("{issuer:?}");
    };
    assert_eq!(
        document.url,
        "https://a.b/c/.well-known/openid-configuration"
    );
    assert_eq!(
        (issuer.user_from.as_str(), issuer.prefix.as_str()),
        ("sub", "")
    );
    assert_eq!(
        issuer.algorithms,
        [SigningAlgorithm::RS256, SigningAlgorithm::ES256]
    );
    assert_eq!(config.claims().collect::<Vec<_>>(), ["unit"]);
    let ldap = "[sign_in]\npasswords = \"ldap\"\n[sign_in.ldap]\n";
    let by_name = format!("{ldap}url = \"ldaps://d\"\nuser_dn = \"uid={{user}},dc=x\"\n");
    let directory = read(&by_name).unwrap().sign_in.ldap.unwrap();
    assert_eq!(directory.host.to_string(), "tls://d:636");
    assert_eq!(directory.entry, LdapEntry::Named("uid={user},dc=x".into()));
    for (text, expected) in [
        (
            oidc.replace("https", "http"),
            "sign_in.oidc \"http://a.b/c\": issuer",
        ),
        (
            oidc.replace("[\"t\"]", "[]"),
            "sign_in.oidc \"https://a.b/c\": audience",
        ),
        (
            format!("{oidc}algorithms = [\"HS256\"]\n"),
            "sign_in.oidc \"https://a.b/c\": algorithms is \"HS256\"",
        ),
        (
            format!("{oidc}algorithms = [\"none\"]\n"),
            "sign_in.oidc \"https://a.b/c\": algorithms is \"none\"",
        ),
        (
            format!("{oidc}algorithms = []\n"),
            "sign_in.oidc \"https://a.b/c\": algorithms",
        ),
        (format!("{oidc}{oidc}"), "two [[sign_in.oidc]]"),
        (
            format!("{oidc}claims = [\"a b\"]\n"),
            "sign_in.oidc \"https://a.b/c\": claims: \"a b\"",
        ),
        (
            format!("{oidc}claims = 7\n"),
            "sign_in.oidc \"https://a.b/c\": claims: it is neither",
        ),
        (
            format!("{oidc}claims = [\"a\", \"a\"]\n"),
            "sign_in.oidc \"https://a.b/c\": claims: a is there twice",
        ),
        (
            format!("{oidc}audience_ = 1\n"),
            "line 6: unknown key \"audience_\"",
        ),
        (
            "[sign_in]\npasswords = \"pam\"\n".into(),
            "sign_in.passwords is \"pam\"",
        ),
        (
            "[sign_in]\npasswords = \"ldap\"\n".into(),
            "sign_in.passwords is \"ldap\", and",
        ),
        (
            "[sign_in]\nreauthenticate_after = \"soon\"\n".into(),
            "sign_in.reauthenticate_after is \"soon\"",
        ),
        (by_name.replace("passwords", "#"), "[sign_in.ldap] is there"),
        (
            by_name.replace("ldaps://d", "ldap://d"),
            "sign_in.ldap: passwords would go",
        ),
        (
            by_name.replace("ldaps://d", "http://d"),
            "sign_in.ldap: url \"http://d\"",
        ),
        (
            by_name.replace("{user}", "nancy"),
            "sign_in.ldap: it has to be said",
        ),
        (
            format!("{by_name}starttls = true\n"),
            "sign_in.ldap: starttls",
        ),
        (
            format!("{ldap}url = \"ldaps://d\"\nbase_dn = \"x\"\nfilter = \"uid={{user}}\"\n"),
            "sign_in.ldap: it has to be said",
        ),
        (
            format!(
                "{ldap}url = \"ldaps://d\"\nbase_dn = \"x\"\nfilter = \"(uid={{user}})\"\n\
                 bind_dn = \"a\"\n"
            ),
            "sign_in.ldap: bind_dn and bind_password_file",
        ),
        (
            "[sign_in.certificates]\n".into(),
            "sign_in.certificates: authority is missing",
        ),
        (
            "[sign_in.certificates]\nauthority = \"f\"\nuser_from = \"mail\"\n".into(),
            "sign_in.certificates.user_from is \"mail\"",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}\n{text}");
        assert!(!error.hint().is_empty());
    }
    // Not encrypted, but nowhere to be read.
    for url in ["ldap://127.0.0.1:3890", "ldap://localhost"] {
        read(&by_name.replace("ldaps://d", url)).unwrap();
    }
    read(&format!(
        "{}starttls = true\n",
        by_name.replace("ldaps", "ldap")
    ))
    .unwrap();
    read(&oidc.replace("https://a.b", "http://127.0.0.1:8080")).unwrap();
}

#[test]
fn what_nobody_fills_of_what_queries_name_is_warned_of() {
    let text = "[server]\nconsolidated = \"sqlite:x\"\n\
        [[sign_in.oidc]]\nissuer = \"https://a.b\"\naudience = [\"t\"]\nclaims = [\"region\"]\n\
        [[procedure]]\nname = \"p\"\nreturns = \"value\"\n\
        sql = \"SELECT {s.claims.region}, {ml s.claims.regoin}\"\n\
        allow = \"SELECT 1 WHERE {s.claims.other} = 'x'\"\n";
    let warnings = Config::parse(text).unwrap().claim_warnings();
    let [other, regoin] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(other.contains("{s.claims.other}") && other.contains("name it in claims"));
    assert!(regoin.contains("{s.claims.regoin}") && regoin.contains("did you mean \"region\"?"));
}
