//! What a running server does not take over when it reads its configuration again.

use super::Config;

impl Config {
    /// The settings that `new` has otherwise and that count only when the server is started, by their
    /// paths in the grammar.
    pub fn changes_for_start(&self, new: &Config) -> Vec<&'static str> {
        let (old_server, new_server) = (&self.server, &new.server);
        let differ = [
            ("server.listen", old_server.listen != new_server.listen),
            ("server.admin", old_server.admin != new_server.admin),
            ("server.http", old_server.http != new_server.http),
            ("server.proxies", old_server.proxies != new_server.proxies),
            (
                "server.consolidated",
                old_server.consolidated != new_server.consolidated,
            ),
            ("server.limits", old_server.limits != new_server.limits),
            ("live", self.live != new.live),
            ("relay", self.relay != new.relay),
            ("wake", self.wakes != new.wakes),
            ("upstream", self.upstream != new.upstream),
            ("images", self.images != new.images),
            ("log", self.log != new.log),
        ];
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        differ.map(|(path, _)| path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{SECTIONS, TakesEffect, join};

    const OLD: &str = "[server]\nconsolidated = \"sqlite:a\"\n[server.tls]\ncertificate = \"c\"\n\
                       key = \"k\"\n";

    /// Every setting that counts from the start is another one.
    const NEW: &str = "[server]\nconsolidated = \"sqlite:b\"\nlisten = [\"tcp://127.0.0.1:1\"]\n\
                       admin = \"http://127.0.0.1\"\nhttp = \"http://127.0.0.1\"\n\
                       proxies = [\"127.0.0.1\"]\ninsecure = true\ncompression = \"off\"\n\
                       [server.tls]\ncertificate = \"d\"\nkey = \"k\"\n\
                       [server.limits]\nbacklog = 7\n[retention]\nlog = \"1d\"\n\
                       [live]\nnats = \"nats://h\"\n[log]\nlevel = \"warn\"\n\
                       [[wake]]\nurl = \"https://h/\"\n\
                       [relay]\nconnect = [\"h\"]\nname = \"h\"\ntoken = \"abcdefgh\"\n\
                       [upstream]\nserver = \"h\"\nuser = \"u\"\npublications = [\"p\"]\n\
                       [[images.image]]\nname = \"n\"\npublication = \"p\"\neveryone = true\n";

    #[test]
    fn what_counts_at_the_start_is_what_the_grammar_says() {
        let (old, new) = (Config::parse(OLD).unwrap(), Config::parse(NEW).unwrap());
        assert_eq!(old.changes_for_start(&old), Vec::<&str>::new());
        let told = old.changes_for_start(&new);
        let is_told = |path: &str| {
            let mut told = told.iter();
            told.any(|it| path == *it || path.starts_with(&format!("{it}.")))
        };
        for section in SECTIONS {
            for key in section.keys {
                let path = join(section.path, key.name);
                let when = key.takes_effect.unwrap_or(section.takes_effect);
                assert_eq!(is_told(&path), when == TakesEffect::Start, "{path}");
            }
        }
    }
}
