//! `[sign_in]`: who may say who a user is, as it is configured.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidewater_carrier::ServerUrl;
use tidewater_centre::{ActAs, RuleBy, nearest};
use tidewater_protocol::message::SubscriptionParameter;

use super::handler::{HandlerReader, HandlerUse};
use super::web::WebAddress;
use super::{CallPermission, Config, ProcedureWork, SqlSource};
use crate::error::ConfigError;
use crate::listen_urls::names_port;
use crate::section_reader::{SectionReader, unknown_word};

/// What is asked for each sign-in without a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignInConfig {
    /// Who knows passwords.
    pub passwords: PasswordSource,
    /// Whether a user who is new here, but proven by others, is added.
    pub create_users: bool,
    /// After how long a user whom others have proven has to be proven again.
    pub again_after: Option<Duration>,
    /// Whose tokens count.
    pub oidc: Vec<OidcConfig>,
    /// The directory that knows passwords.
    pub ldap: Option<LdapConfig>,
    /// Whose certificates count.
    pub certificates: Option<CertificatesConfig>,
}

/// Who knows passwords.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PasswordSource {
    /// The consolidated database.
    #[default]
    BuiltIn,
    /// A directory.
    Ldap,
    /// The script `authenticate_user`.
    Script,
    /// A handler.
    Handler,
    /// Nobody: users prove themselves otherwise.
    Off,
}

/// An identity provider whose tokens count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// What its tokens have as `iss`, exactly.
    pub issuer: String,
    /// Where it says where its keys are, or where they are.
    pub source: IssuerKeySource,
    /// One of these has to be among a token's `aud`.
    pub audience: Vec<String>,
    /// How tokens may be signed.
    pub algorithms: Vec<SigningAlgorithm>,
    /// The claim that is the user's name.
    pub user_from: String,
    /// What the user's name begins with before that.
    pub prefix: String,
    /// What is kept of the user.
    pub claims: Vec<KeptClaim>,
    /// A PEM file with the authorities to trust, instead of public ones.
    pub ca: Option<PathBuf>,
}

/// Where an issuer's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssuerKeySource {
    /// This document tells.
    Discovery(WebAddress),
    /// Here.
    Keys(WebAddress),
}

/// How a token may be signed: with a key of which only the issuer has the secret half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    clippy::upper_case_acronyms,
    missing_docs,
    reason = "RFC 7518 names them so"
)]
pub enum SigningAlgorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl SigningAlgorithm {
    const ALL: [(&str, SigningAlgorithm); 9] = [
        ("RS256", SigningAlgorithm::RS256),
        ("RS384", SigningAlgorithm::RS384),
        ("RS512", SigningAlgorithm::RS512),
        ("PS256", SigningAlgorithm::PS256),
        ("PS384", SigningAlgorithm::PS384),
        ("PS512", SigningAlgorithm::PS512),
        ("ES256", SigningAlgorithm::ES256),
        ("ES384", SigningAlgorithm::ES384),
        ("EdDSA", SigningAlgorithm::EdDSA),
    ];

    /// As it stands in a token.
    pub fn name(self) -> &'static str {
        let mut all = SigningAlgorithm::ALL.iter();
        all.find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<SigningAlgorithm> {
        let mut all = SigningAlgorithm::ALL.iter();
        all.find(|(known, _)| *known == name).map(|(_, it)| *it)
    }
}

/// Something that is kept of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptClaim {
    /// Under this name: `{s.claims.NAME}`.
    pub name: String,
    /// What it is called where it comes from.
    pub from: String,
}

/// A directory that knows passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapConfig {
    /// Its URL, as it was written.
    pub url: String,
    /// Where that is.
    pub host: ServerUrl,
    /// Whether the connection is encrypted after it was opened.
    pub starttls: bool,
    /// How a user's entry is found.
    pub entry: LdapEntry,
    /// The attribute that is the user's name.
    pub user_from: String,
    /// What is kept of the user.
    pub claims: Vec<KeptClaim>,
    /// A PEM file with the authorities to trust, instead of public ones.
    pub ca: Option<PathBuf>,
    /// How long it may take to answer.
    pub timeout: Duration,
}

/// How a user's entry is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapEntry {
    /// Its name, with `{user}` for that of the user.
    Named(String),
    /// It is searched for.
    Found {
        /// As whom; as nobody, if nothing is said.
        account: Option<LdapAccount>,
        /// Below this entry.
        base: String,
        /// With this filter, which has `{user}` for the user's name.
        filter: String,
    },
}

/// As whom a directory is searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapAccount {
    /// The name of its entry.
    pub name: String,
    /// The file that holds its password.
    pub password_file: PathBuf,
}

/// Whose certificates say who a user is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatesConfig {
    /// A PEM file with the authorities.
    pub authority: PathBuf,
    /// What in a certificate is the user's name.
    pub user_from: CertificateName,
}

/// What in a certificate is a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// The subject's common name.
    CommonName,
    /// The subject alternative name that is a mail address.
    Email,
    /// The one that is a URI.
    Uri,
}

impl SignInConfig {
    /// Makes relative paths start at this folder.
    pub(super) fn start_paths_at(&mut self, folder: &Path) {
        let oidc = self.oidc.iter_mut().filter_map(|it| it.ca.as_mut());
        let certificates = self.certificates.iter_mut().map(|it| &mut it.authority);
        let ldap = self.ldap.iter_mut().flat_map(|it| {
            let password = match &mut it.entry {
                LdapEntry::Found { account, .. } => account.as_mut(),
                LdapEntry::Named(_) => None,
            };
            let password = password.map(|account| &mut account.password_file);
            it.ca.iter_mut().chain(password)
        });
        for path in oidc.chain(certificates).chain(ldap) {
            *path = folder.join(&*path);
        }
    }

    /// Every `{s.claims.NAME}` that somebody fills.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        let oidc = self.oidc.iter().flat_map(|it| &it.claims);
        let ldap = self.ldap.iter().flat_map(|it| &it.claims);
        oidc.chain(ldap).map(|it| it.name.as_str())
    }
}

impl Config {
    /// Warns of what queries name as `{s.claims.NAME}` and nobody fills: it would be NULL for
    /// everybody.
    pub fn claim_warnings(&self) -> Vec<String> {
        // A handler may fill any.
        if self.sign_in.passwords == PasswordSource::Handler {
            return Vec::new();
        }
        let filled: Vec<&str> = self.sign_in.claims().collect();
        let mut named = BTreeSet::new();
        for query in self.queries() {
            let rest = query
                .split("{s.claims.")
                .chain(query.split("{ml s.claims."));
            named.extend(rest.filter_map(|it| it.split_once('}').map(|(name, _)| name)));
        }
        let is_one = |name: &&str| SubscriptionParameter::is_name(name) && !filled.contains(name);
        let unfilled = named.into_iter().filter(is_one);
        let warning = |name: &str| {
            let hint = match nearest(name, filled.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "name it in claims under [[sign_in.oidc]] or [sign_in.ldap]".into(),
            };
            format!(
                "queries name {{s.claims.{name}}}, and no [sign_in] of this configuration fills \
                 that: it is NULL for everybody; {hint}"
            )
        };
        unfilled.map(warning).collect()
    }

    /// Those in which parameters can be named.
    fn queries(&self) -> impl Iterator<Item = &str> {
        let of_publications = self.publications.iter().flat_map(|publication| {
            let rules = publication.tables.iter().flat_map(|it| &it.partition);
            let partitions = rules.filter_map(|rule| match &rule.by {
                RuleBy::Columns { values, .. } => Some(values.as_str()),
                RuleBy::Everyone | RuleBy::Follows { .. } => None,
            });
            let writes = publication.tables.iter();
            let writes = writes.filter_map(|it| Some(it.writes.scope.as_ref()?.values.as_str()));
            let allowed = publication.parameters.iter();
            let allowed = allowed.filter_map(|it| it.allowed.as_deref());
            let role = match &publication.act_as {
                Some(ActAs::Query(query)) => Some(query.as_str()),
                _ => None,
            };
            partitions.chain(writes).chain(allowed).chain(role)
        });
        let of_procedures = self.procedures.iter().flat_map(|procedure| {
            let statement = match &procedure.work {
                ProcedureWork::Sql {
                    sql: SqlSource::Text(text),
                    ..
                } => Some(text.as_str()),
                _ => None,
            };
            let allow = match &procedure.allow {
                CallPermission::Query(query) => Some(query.as_str()),
                CallPermission::Everyone => None,
            };
            statement.into_iter().chain(allow)
        });
        of_publications.chain(of_procedures)
    }
}

/// So many names are kept of a user at most.
const MAX_CLAIMS: usize = 64;

impl SignInConfig {
    pub(super) fn read(
        mut section: SectionReader,
        insecure: bool,
        handlers: &mut HandlerReader,
    ) -> Result<SignInConfig, ConfigError> {
        let sources = [
            PasswordSource::BuiltIn,
            PasswordSource::Ldap,
            PasswordSource::Script,
            PasswordSource::Handler,
            PasswordSource::Off,
        ];
        let passwords = section.choice("passwords", &sources)?;
        let ldap = section.section("ldap")?;
        match (passwords, &ldap) {
            (PasswordSource::Ldap, None) => {
                return Err(ConfigError::new(
                    "sign_in.passwords is \"ldap\", and [sign_in.ldap] is missing",
                    "write [sign_in.ldap] with url and user_dn, or with base_dn and filter",
                ));
            }
            (
                PasswordSource::BuiltIn
                | PasswordSource::Script
                | PasswordSource::Handler
                | PasswordSource::Off,
                Some(_),
            ) => {
                return Err(ConfigError::new(
                    "[sign_in.ldap] is there, and nobody asks it",
                    "write passwords = \"ldap\" under [sign_in], or remove the section",
                ));
            }
            _ => {}
        }
        match (passwords, HandlerUse::read(&mut section)?) {
            (PasswordSource::Handler, Some(used)) => {
                let handler = handlers.assign("sign_in", used)?;
                handlers.handling.sign_in = Some(handler);
            }
            (PasswordSource::Handler, None) => {
                return Err(ConfigError::new(
                    "sign_in.passwords is \"handler\", and there is none",
                    "write handler = \"https://HOST/PATH\" under [sign_in]",
                ));
            }
            (_, Some(_)) => {
                return Err(ConfigError::new(
                    "sign_in.handler is there, and nobody asks it",
                    "write passwords = \"handler\" under [sign_in], or remove the handler",
                ));
            }
            (_, None) => {}
        }
        let oidc = section.sections("oidc")?.into_iter();
        let oidc = oidc.map(|it| OidcConfig::read(it, insecure));
        let oidc: Vec<OidcConfig> = oidc.collect::<Result<_, _>>()?;
        let mut issuers = HashSet::new();
        if let Some(twice) = oidc.iter().find(|it| !issuers.insert(&it.issuer)) {
            return Err(ConfigError::new(
                format!("two [[sign_in.oidc]] have the issuer {:?}", twice.issuer),
                "write one, with all its audiences",
            ));
        }
        let certificates = section.section("certificates")?;
        let certificates = certificates.map(CertificatesConfig::read);
        Ok(SignInConfig {
            passwords,
            create_users: section.flag("create_users")?,
            again_after: section.optional_duration("reauthenticate_after")?,
            oidc,
            ldap: ldap.map(|it| LdapConfig::read(it, insecure)).transpose()?,
            certificates: certificates.transpose()?,
        })
    }
}

impl OidcConfig {
    fn read(mut section: SectionReader, insecure: bool) -> Result<OidcConfig, ConfigError> {
        let issuer = section.text("issuer")?.unwrap_or_default();
        let place = format!("sign_in.oidc {issuer:?}");
        let wrong =
            |what: &str, hint: &str| Err(ConfigError::new(format!("{place}: {what}"), hint));
        let address = |key: &str, url: &str| {
            WebAddress::read(url, insecure).map_err(|(what, hint)| {
                ConfigError::new(format!("{place}: {key} {url:?} {what}"), hint)
            })
        };
        let below = issuer.trim_end_matches('/');
        let source = match &section.text("jwks_url")? {
            Some(keys) => {
                address("issuer", &issuer)?;
                IssuerKeySource::Keys(address("jwks_url", keys)?)
            }
            None => {
                address("issuer", &issuer)?;
                let document = format!("{below}/.well-known/openid-configuration");
                IssuerKeySource::Discovery(address("issuer", &document)?)
            }
        };
        let audience = section.texts("audience")?;
        if audience.is_empty() || audience.iter().any(String::is_empty) {
            return wrong(
                "audience is missing",
                "write audience = [\"...\"]: what the provider calls this server, or the client \
                 for which it gives tokens. Without it a token for anybody else would do here",
            );
        }
        let algorithms = section.texts("algorithms")?;
        if algorithms.is_empty() {
            return wrong("algorithms is empty", "write algorithms = [\"RS256\"]");
        }
        let algorithms = algorithms.iter().map(|name| {
            SigningAlgorithm::from_name(name).ok_or_else(|| {
                let known = SigningAlgorithm::ALL.map(|(name, _)| name);
                unknown_word(&format!("{place}: algorithms"), name, &known)
            })
        });
        Ok(OidcConfig {
            source,
            audience,
            algorithms: algorithms.collect::<Result<_, _>>()?,
            user_from: read_user_from(&mut section)?,
            prefix: section.text("prefix")?.unwrap_or_default(),
            claims: read_claims(&place, section.value("claims")?)?,
            ca: section.path("ca")?,
            issuer,
        })
    }
}

/// Where a user's name comes from. What is empty counts as if it were not there: the key is taken by
/// then, and its default is left.
fn read_user_from(section: &mut SectionReader) -> Result<String, ConfigError> {
    let written = section.text("user_from")?.unwrap_or_default();
    match written.is_empty() {
        true => Ok(section.text("user_from")?.unwrap_or_default()),
        false => Ok(written),
    }
}

fn read_claims(place: &str, claims: Option<toml::Value>) -> Result<Vec<KeptClaim>, ConfigError> {
    let claims = match claims {
        None => Some(Vec::new()),
        Some(toml::Value::Array(names)) => names.into_iter().map(same_name).collect(),
        Some(toml::Value::Table(named)) => named.into_iter().map(other_name).collect(),
        Some(_) => None,
    };
    let hint = "write claims = [\"department\"], or claims = { region = \"custom:region\" } to give \
                one another name: letters, digits and underscores, for {s.claims.region}";
    let wrong = |what: String| {
        let what = format!("{place}: claims: {what}");
        Err(ConfigError::new(what, hint))
    };
    let Some(claims) = claims else {
        return wrong("it is neither a list of texts nor texts with names".into());
    };
    let mut seen = HashSet::new();
    for KeptClaim { name, from } in &claims {
        let what = if !SubscriptionParameter::is_name(name) {
            format!("{name:?} can be no name in a query")
        } else if from.is_empty() {
            format!("{name} comes from nowhere")
        } else if !seen.insert(name) {
            format!("{name} is there twice")
        } else {
            continue;
        };
        return wrong(what);
    }
    match claims.len() > MAX_CLAIMS {
        true => Err(ConfigError::new(
            format!("{place}: {} claims are to be kept", claims.len()),
            format!("keep what queries need, at most {MAX_CLAIMS}"),
        )),
        false => Ok(claims),
    }
}

fn same_name(name: toml::Value) -> Option<KeptClaim> {
    let name = name.as_str()?.to_owned();
    let from = name.clone();
    Some(KeptClaim { name, from })
}

fn other_name((name, from): (String, toml::Value)) -> Option<KeptClaim> {
    let from = from.as_str()?.to_owned();
    Some(KeptClaim { name, from })
}

/// What stands for the user's name.
pub const USER_PLACEHOLDER: &str = "{user}";

impl LdapConfig {
    fn read(mut section: SectionReader, insecure: bool) -> Result<LdapConfig, ConfigError> {
        let wrong =
            |what: &str, hint: &str| Err(ConfigError::new(format!("sign_in.ldap: {what}"), hint));
        let url = section.text("url")?.unwrap_or_default();
        let starttls = section.flag("starttls")?;
        let allows_plain = section.flag("insecure")? || insecure;
        let (scheme, rest, port) = match (url.strip_prefix("ldaps://"), url.strip_prefix("ldap://"))
        {
            (Some(rest), _) => ("tls", rest, 636),
            (_, Some(rest)) => ("tcp", rest, 389),
            _ => {
                let what = format!("url {url:?} does not begin with ldaps:// or ldap://");
                return wrong(&what, "write url = \"ldaps://directory.example.com\"");
            }
        };
        let Ok(mut host) = ServerUrl::to_listen(&format!("{scheme}://{rest}")) else {
            let what = format!("url {url:?} names no host");
            return wrong(&what, "write url = \"ldaps://directory.example.com\"");
        };
        if !names_port(rest, &host) {
            host.port = port;
        }
        if starttls && scheme == "tls" {
            let what = "starttls goes with ldap://, and url is ldaps://";
            return wrong(
                what,
                "remove starttls: ldaps:// is encrypted from the first byte",
            );
        }
        if host.is_exposed() && !starttls && !allows_plain {
            return wrong(
                "passwords would go unencrypted to another machine",
                "write ldaps://, or starttls = true, or insecure = true",
            );
        }
        let account = (
            section.text("bind_dn")?,
            section.path("bind_password_file")?,
        );
        let entry = match (
            section.text("user_dn")?,
            section.text("base_dn")?,
            section.text("filter")?,
        ) {
            (Some(name), None, None) if name.contains(USER_PLACEHOLDER) => LdapEntry::Named(name),
            (None, Some(base), Some(filter))
                if filter.contains(USER_PLACEHOLDER) && filter.starts_with('(') =>
            {
                LdapEntry::Found {
                    account: match account {
                        (None, None) => None,
                        (Some(name), Some(password_file)) => Some(LdapAccount {
                            name,
                            password_file,
                        }),
                        _ => {
                            let what = "bind_dn and bind_password_file go together";
                            return wrong(what, "write both, or none to search as nobody");
                        }
                    },
                    base,
                    filter,
                }
            }
            _ => {
                return wrong(
                    "it has to be said how a user's entry is found",
                    "write user_dn = \"uid={user},ou=people,dc=example,dc=com\", or base_dn = \
                     \"dc=example,dc=com\" with filter = \"(uid={user})\" to search for it",
                );
            }
        };
        Ok(LdapConfig {
            url,
            host,
            starttls,
            entry,
            user_from: read_user_from(&mut section)?,
            claims: read_claims("sign_in.ldap", section.value("claims")?)?,
            ca: section.path("ca")?,
            timeout: section.duration("timeout")?,
        })
    }
}

impl CertificatesConfig {
    fn read(mut section: SectionReader) -> Result<CertificatesConfig, ConfigError> {
        let key = "sign_in.certificates";
        let authority = section
            .path("authority")?
            .filter(|it| !it.as_os_str().is_empty());
        let authority = authority.ok_or_else(|| {
            ConfigError::new(
                format!("{key}: authority is missing"),
                "write authority = \"FILE.pem\": the authority that has issued the certificates",
            )
        })?;
        let names = [
            CertificateName::CommonName,
            CertificateName::Email,
            CertificateName::Uri,
        ];
        Ok(CertificatesConfig {
            authority,
            user_from: section.choice("user_from", &names)?,
        })
    }
}
