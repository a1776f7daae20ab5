//! PTX text in tokens.

/// A part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// A name, an opcode with all its parts, or a directive: letters, digits, `_ $ % .` and `::`.
    Word(&'a str),
    /// A number as it is written, without its sign.
    Number(&'a str),
    /// A text in quotes.
    Text,
    /// Anything else.
    Sign(u8),
}

/// A token and the line that it is on, counted from 1.
pub(crate) type Placed<'a> = (Token<'a>, u32);

/// All tokens of a text; comments are left out.
pub(crate) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, String> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while at < bytes.len() {
        let rest = &bytes[at..];
        match rest[0] {
            b'\n' => (at, line) = (at + 1, line + 1),
            byte if byte.is_ascii_whitespace() || byte == 0 => at += 1,
            b'/' if rest.starts_with(b"//") => {
                at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            }
            b'"' => {
                let end = rest[1..].iter().position(|byte| *byte == b'"');
                at += end.ok_or_else(|| format!("line {line}: a text without an end"))? + 2;
                found.push((Token::Text, line));
            }
            byte if byte.is_ascii_digit() => {
                let length = rest
                    .iter()
                    .position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'.'));
                let end = at + length.unwrap_or(rest.len());
                found.push((Token::Number(&text[at..end]), line));
                at = end;
            }
            byte if is_word(byte) => {
                let end = at + word(rest);
                found.push((Token::Word(&text[at..end]), line));
                at = end;
            }
            byte if byte.is_ascii() => {
                found.push((Token::Sign(byte), line));
                at += 1;
            }
            _ => return Err(format!("line {line}: a letter that PTX does not have")),
        }
    }
    Ok(found)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// How long the word is that this begins with.
fn word(rest: &[u8]) -> usize {
    let mut at = 0;
    while at < rest.len() {
        if is_word(rest[at]) {
            at += 1;
        } else if rest[at..].starts_with(b"::") {
            at += 2;
        } else {
            break;
        }
    }
    at
}
