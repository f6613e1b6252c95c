//! Which clients CLIENT LIST shows and CLIENT KILL ends.

use crate::commands::{ClientFilter, words};
use crate::error::CommandError;
use crate::limits::CLIENT_IDS;
use crate::session::{ClientInfo, Session};
use crate::wire::Args;
use crate::wire::number::parse_i64;

/// Whether a session is one of those meant.
pub fn fits(filter: &ClientFilter, session: &Session) -> bool {
    client_fits(filter, &session.client)
}

fn client_fits(filter: &ClientFilter, client: &ClientInfo) -> bool {
    let is = |wanted: &Option<String>, address: &crate::input::Peer| {
        wanted
            .as_ref()
            .is_none_or(|wanted| *wanted == address.to_string())
    };
    (filter.ids.is_empty() || filter.ids.binary_search(&client.id).is_ok())
        && filter.skip != Some(client.id)
        && is(&filter.addr, &client.peer)
        && is(&filter.laddr, &client.local)
}

/// CLIENT LIST [TYPE normal] [ID id ...].
pub(super) fn of_list(args: &Args<'_>) -> Result<ClientFilter, CommandError> {
    let mut filter = ClientFilter::default();
    let mut rest = args.iter().skip(2).peekable();
    while let Some(option) = rest.next() {
        match words::lowercase(option).as_str() {
            "type" => check_type(rest.next().ok_or(CommandError::Syntax)?)?,
            "id" if rest.peek().is_some() => {
                words::check_number("client IDs", rest.len(), CLIENT_IDS)?;
                filter.ids = rest.by_ref().map(parse_id).collect::<Result<_, _>>()?;
                filter.ids.sort_unstable();
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(filter)
}

/// CLIENT KILL ip:port.
pub(super) fn of_address(address: &[u8]) -> ClientFilter {
    ClientFilter {
        addr: Some(String::from_utf8_lossy(address).into_owned()),
        ..ClientFilter::default()
    }
}

/// CLIENT KILL with options; `own` is the client that asks, and is spared unless SKIPME no.
pub(super) fn of_kill(args: &Args<'_>, own: u64) -> Result<ClientFilter, CommandError> {
    let mut filter = ClientFilter {
        skip: Some(own),
        ..ClientFilter::default()
    };
    let mut rest = args.iter().skip(2);
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(CommandError::Syntax)?;
        let text = || Some(String::from_utf8_lossy(value).into_owned());
        match words::lowercase(option).as_str() {
            "id" => filter.ids = vec![parse_id(value)?],
            "addr" => filter.addr = text(),
            "laddr" => filter.laddr = text(),
            "type" => check_type(value)?,
            "user" if value != b"default" => {
                let name = String::from_utf8_lossy(&value[..value.len().min(128)]).into_owned();
                return Err(CommandError::other(format!("No such user '{name}'")));
            }
            "user" => {}
            "skipme" if words::is(value, "yes") => filter.skip = Some(own),
            "skipme" if words::is(value, "no") => filter.skip = None,
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(filter)
}

fn parse_id(text: &[u8]) -> Result<u64, CommandError> {
    let id = parse_i64(text)
        .and_then(|id| u64::try_from(id).ok())
        .filter(|&id| id > 0);
    id.ok_or_else(|| CommandError::other("client-id should be greater than 0"))
}

fn check_type(name: &[u8]) -> Result<(), CommandError> {
    if words::is(name, "normal") {
        return Ok(());
    }
    let name = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    Err(CommandError::other(format!("Unknown client type '{name}'")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Mono;
    use crate::commands::testing::with_args;
    use crate::input::Peer;

    fn split(request: &str) -> Vec<&str> {
        request.split(' ').collect()
    }

    fn kill(request: &str) -> Result<ClientFilter, CommandError> {
        with_args(&split(request), |args| of_kill(&args, 7))
    }

    fn list(request: &str) -> Result<ClientFilter, CommandError> {
        with_args(&split(request), |args| of_list(&args))
    }

    #[test]
    fn kill_options() {
        let all = ClientFilter {
            ids: vec![5],
            addr: Some("1.2.3.4:5".into()),
            laddr: Some("1.2.3.4:6".into()),
            skip: None,
        };
        let request = "CLIENT KILL ID 5 ADDR 1.2.3.4:5 laddr 1.2.3.4:6 TYPE normal USER default SKIPME no";
        assert_eq!(kill(request), Ok(all));
        assert_eq!(kill("CLIENT KILL ID 5").map(|filter| filter.skip), Ok(Some(7)));
        for request in [
            "CLIENT KILL ID 5 ADDR",
            "CLIENT KILL FOO x",
            "CLIENT KILL SKIPME maybe",
        ] {
            assert_eq!(kill(request), Err(CommandError::Syntax), "{request}");
        }
        for (request, text) in [
            ("CLIENT KILL ID 0", "ERR client-id should be greater than 0"),
            ("CLIENT KILL TYPE slave", "ERR Unknown client type 'slave'"),
            ("CLIENT KILL USER bob", "ERR No such user 'bob'"),
        ] {
            assert_eq!(kill(request).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn list_options() {
        assert_eq!(list("CLIENT LIST"), Ok(ClientFilter::default()));
        assert_eq!(
            list("CLIENT LIST TYPE normal ID 1 2 3").map(|filter| filter.ids),
            Ok(vec![1, 2, 3])
        );
        for request in ["CLIENT LIST ID", "CLIENT LIST TYPE", "CLIENT LIST FOO"] {
            assert_eq!(list(request), Err(CommandError::Syntax), "{request}");
        }
        assert!(list("CLIENT LIST TYPE pubsub").is_err());
        assert!(list("CLIENT LIST ID 1 x").is_err());
    }

    #[test]
    fn ids_are_few_and_in_any_order() {
        let peer = Peer::Unix("/s".into());
        let client = ClientInfo::new(5, peer.clone(), peer, Mono(0), true);
        let fits = |request: &str| client_fits(&list(request).expect("a filter"), &client);
        assert!(fits("CLIENT LIST ID 9 5 7 5 1"));
        assert!(!fits("CLIENT LIST ID 9 7 1 4"));
        let of_ids = |count: usize| list(&format!("CLIENT LIST ID{}", " 5".repeat(count)));
        assert_eq!(of_ids(CLIENT_IDS).map(|filter| filter.ids.len()), Ok(CLIENT_IDS));
        assert_eq!(
            of_ids(CLIENT_IDS + 1).unwrap_err().to_string(),
            "ERR too many client IDs, at most 1024"
        );
    }

    #[test]
    fn all_that_is_given_must_fit() {
        let peer = |text: &str| Peer::Tcp(text.parse().expect("an address"));
        let client = ClientInfo::new(5, peer("1.2.3.4:5"), peer("1.2.3.4:6"), Mono(0), true);
        let fits = |request: &str| client_fits(&kill(request).expect("a filter"), &client);
        assert!(fits("CLIENT KILL ID 5"));
        assert!(fits("CLIENT KILL ADDR 1.2.3.4:5 LADDR 1.2.3.4:6"));
        assert!(fits("CLIENT KILL TYPE normal"));
        assert!(!fits("CLIENT KILL ID 6"));
        assert!(!fits("CLIENT KILL ID 5 ADDR 1.2.3.4:6"));
        assert!(!fits("CLIENT KILL ID 5 LADDR 1.2.3.4:5"));
        let own = ClientFilter {
            skip: Some(5),
            ..ClientFilter::default()
        };
        assert!(!client_fits(&own, &client));
        assert!(client_fits(&of_address(b"1.2.3.4:5"), &client));
    }
}
