//! Tells a web browser from a client.
//!
//! A page in a browser can make it send an HTTP request to any port; its body would then be executed line by
//! line. Its first line gives it away, and the connection is closed before anything behind it is looked at.

const METHODS: [&[u8]; 10] =
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI"];

/// Whether this line is the first of an HTTP request, or its `Host:` header.
pub(crate) fn is_http(line: &[u8]) -> bool {
    starts_with_ignoring_case(line, b"host:") || is_request_line(line)
}

/// Whether the first word of this line is `POST`, which Redis too takes for a browser's.
pub(crate) fn is_post(line: &[u8]) -> bool {
    words(line).next().is_some_and(|word| word.eq_ignore_ascii_case(b"post"))
}

/// `<method> <path> HTTP/1.x`: a task whose last word merely looks like HTTP is none.
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
    fn a_request_line_is_told_from_a_command() {
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
