//! Whom a request comes from, by the headers that web servers in front add: `Forwarded` (RFC 7239)
//! and `X-Forwarded-For`.
//!
//! Only what a proxy that the configuration names has added counts. Each adds at the end whom it
//! got the request from, so the hops are gone through from the right, as long as they are proxies;
//! what is left of the first other address may be anything that a client made up.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, header};

use tidewater_carrier::proxy_header::IpNetworks;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the client of a request that came over a connection from `peer`.
pub(super) fn client(peer: &str, headers: &HeaderMap, proxies: &IpNetworks) -> String {
    let Some(proxy) = peer.parse().ok().filter(|it| proxies.contain(*it)) else {
        return peer.to_owned();
    };
    let told = |name: &HeaderName, read: fn(&str) -> Vec<Option<IpAddr>>| {
        let hops = headers.get_all(name).iter();
        let hops = hops.flat_map(|it| it.to_str().map_or(vec![None], read));
        let hops: Vec<_> = hops.collect();
        (!hops.is_empty()).then(|| first_other(proxy, &hops, proxies))
    };
    let client = match (
        told(&header::FORWARDED, forwarded),
        told(&X_FORWARDED_FOR, x_forwarded_for),
    ) {
        (Some(one), None) | (None, Some(one)) => one,
        (Some(one), Some(other)) if one == other => one,
        // A proxy adds one of them, and lets a client's own pass as the other.
        _ => proxy,
    };
    client.to_string()
}

/// The first from the right that is no proxy, or the last that somebody to be believed has told.
fn first_other(proxy: IpAddr, hops: &[Option<IpAddr>], proxies: &IpNetworks) -> IpAddr {
    let mut client = proxy;
    for hop in hops.iter().rev() {
        match hop {
            Some(hop) if proxies.contain(client) => client = *hop,
            _ => break,
        }
    }
    client
}

fn x_forwarded_for(text: &str) -> Vec<Option<IpAddr>> {
    text.split(',').map(address).collect()
}

fn forwarded(text: &str) -> Vec<Option<IpAddr>> {
    let hops = split(text, ',').into_iter();
    let hops = hops.map(|hop| {
        let mut pairs = split(hop, ';').into_iter();
        pairs.find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let is_for = name.trim().eq_ignore_ascii_case("for");
            is_for.then(|| address(value.trim().trim_matches('"')))?
        })
    });
    hops.collect()
}

/// The parts between a separator that stands in no quotes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut begin) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            it if it == separator && !is_quoted => {
                parts.push(&text[begin..at]);
                begin = at + it.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// An address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().ok();
    let address = address.or_else(|| text.parse().ok().map(|it: SocketAddr| it.ip()));
    address.map(|it| it.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_of(peer: &str, given: &[(&'static str, &str)]) -> String {
        let proxies = ["10.0.0.0/8", "::1"].map(|it| it.parse().unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        client(peer, &headers, &proxies.into_iter().collect())
    }

    #[test]
    fn a_proxy_tells_whom_a_request_comes_from_and_nobody_else_does() {
        let x = "x-forwarded-for";
        for (peer, headers, expected) in [
            ("10.0.0.1", &[][..], "10.0.0.1"),
            ("192.0.2.1", &[(x, "192.0.2.9")], "192.0.2.1"),
            ("device", &[(x, "192.0.2.9")], "device"),
            ("10.0.0.1", &[(x, "192.0.2.9")], "192.0.2.9"),
            ("::1", &[(x, "2001:db8::7")], "2001:db8::7"),
            ("10.0.0.1", &[(x, "[2001:db8::7]:80")], "2001:db8::7"),
            ("10.0.0.1", &[(x, "::ffff:192.0.2.9")], "192.0.2.9"),
            // What the client made up stands on the left.
            ("10.0.0.1", &[(x, "1.1.1.1, 192.0.2.9")], "192.0.2.9"),
            (
                "10.0.0.1",
                &[(x, "1.1.1.1"), (x, "192.0.2.9:4711")],
                "192.0.2.9",
            ),
            (
                "10.0.0.1",
                &[(x, "1.1.1.1, 192.0.2.9, 10.3.2.1")],
                "192.0.2.9",
            ),
            ("10.0.0.1", &[(x, "10.0.0.3, 10.0.0.2")], "10.0.0.3"),
            ("10.0.0.1", &[(x, "1.1.1.1, unknown")], "10.0.0.1"),
            ("10.0.0.1", &[(x, "1.1.1.1, , 10.0.0.2")], "10.0.0.2"),
            ("10.0.0.1", &[(x, "")], "10.0.0.1"),
            (
                "10.0.0.1",
                &[(
                    "forwarded",
                    "for=1.1.1.1;by=x, For=\"[2001:db8::7]:4711\";proto=https",
                )],
                "2001:db8::7",
            ),
            (
                "10.0.0.1",
                &[("forwarded", "for=192.0.2.9;by=\"a\\\",for=1.1.1.1\"")],
                "192.0.2.9",
            ),
            (
                "10.0.0.1",
                &[("forwarded", "for=1.1.1.1, proto=http")],
                "10.0.0.1",
            ),
            ("10.0.0.1", &[("forwarded", "for=_hidden")], "10.0.0.1"),
        ] {
            assert_eq!(client_of(peer, headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_header_that_the_proxy_lets_pass_claims_nothing() {
        let x = ("x-forwarded-for", "192.0.2.9");
        let made_up = ("forwarded", "for=1.1.1.1");
        assert_eq!(client_of("10.0.0.1", &[made_up, x]), "10.0.0.1");
        let same = ("forwarded", "for=192.0.2.9");
        assert_eq!(client_of("10.0.0.1", &[same, x]), "192.0.2.9");
    }
}
