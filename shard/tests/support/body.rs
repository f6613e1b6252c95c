//! Bodies that tell which job they are of.

/// The body of a job: its number, and a filler.
pub fn body(number: u64, bytes: usize) -> Vec<u8> {
    let mut body = format!("b{number}:").into_bytes();
    let filler = (0..bytes as u64).map(|at| b'a' + ((number * 31 + at) % 23) as u8);
    body.extend(filler);
    body
}

/// The number in a body.
pub fn number_of(body: &[u8]) -> Option<u64> {
    let digits: Vec<u8> = body
        .strip_prefix(b"b")?
        .iter()
        .copied()
        .take_while(|&byte| byte != b':')
        .collect();
    String::from_utf8(digits).ok()?.parse().ok()
}
