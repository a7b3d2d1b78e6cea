//! Recognizes web browsers.
//!
//! A web page can make a browser send an HTTP request to any port, and its body would be executed as commands line by
//! line. The first lines of such a request reveal it, and the connection is closed before any later line is executed.

const METHODS: [&[u8]; 10] =
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI"];

/// Whether this line is the first of an HTTP request, or its `Host:` header.
pub(crate) fn is_http(line: &[u8]) -> bool {
    starts_with_ignoring_case(line, b"host:") || is_request_line(line)
}

/// Whether the first word of this line is `POST`. Redis closes the connection on this word too.
pub(crate) fn is_post(line: &[u8]) -> bool {
    words(line).next().is_some_and(|word| word.eq_ignore_ascii_case(b"post"))
}

/// Matches `<method> <path> HTTP/1.x`, so that a task whose last word merely looks like HTTP is not mistaken for a
/// request.
fn is_request_line(line: &[u8]) -> bool {
    let mut words = words(line);
    let Some(method) = words.next() else { return false };
    METHODS.iter().any(|known| known.eq_ignore_ascii_case(method))
        && words.next().is_some()
        && words.last().is_some_and(|word| starts_with_ignoring_case(word, b"http/"))
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn starts_with_ignoring_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_request_lines_from_commands() {
        for http in [
            "GET / HTTP/1.1",
            "POST /x HTTP/1.0\r",
            "get /a b http/1.1",
            "Host: x",
            "HOST:x",
            "PRI * HTTP/2.0",
        ] {
            assert!(is_http(http.as_bytes()), "{http:?}");
        }
        for command in
            ["", "GET", "GET /", "GET HTTP/1.1", "RQ.PUSH q HTTP/1.1", "ADD 0 HTTP/1.1", " Host:", "Hos"]
        {
            assert!(!is_http(command.as_bytes()), "{command:?}");
        }
        assert!(is_post(b"post"));
        assert!(!is_post(b"POSTS x"));
    }
}
