//! A PTX module as it is written: variables, and kernels with their statements. What opcodes mean is for [`decode`](crate::decode).

use crate::lexer::{Placed, Token, tokens};
use std::collections::HashMap;

/// What an instruction works on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, a special register, a label or a variable.
    Name(&'a str),
    /// A whole number, or the bits of a floating one.
    Number(u64),
    /// `[base + offset]`; the base may be a name or a number.
    Address(Box<Operand<'a>>, i64),
    /// `{a, b}`.
    List(Vec<Operand<'a>>),
    /// `!p`.
    Not(&'a str),
    /// `a|b`.
    Pair(&'a str, &'a str),
}

/// A register's class, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// One bit per lane.
    Predicate,
    /// Up to 32 bits.
    Word,
    /// 64 bits.
    Double,
}

/// A variable: where, how large, aligned how, and what it holds at first.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) space: &'a str,
    pub(crate) align: u64,
    /// 0 for `[]`: as much as the launch says.
    pub(crate) bytes: u64,
    pub(crate) contents: Vec<u8>,
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(crate) struct Statement<'a> {
    pub(crate) line: u32,
    /// A predicate, and whether it has to be false.
    pub(crate) guard: Option<(&'a str, bool)>,
    pub(crate) opcode: &'a str,
    pub(crate) operands: Vec<Operand<'a>>,
    /// The braces that it stands in, innermost last.
    pub(crate) scope: usize,
}

/// A kernel as it is written.
#[derive(Debug, Default)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    /// Parameters: name, alignment, bytes.
    pub(crate) parameters: Vec<Variable<'a>>,
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) statements: Vec<Statement<'a>>,
    /// By scope: the one around it, registers (`%r` for `%r<9>`) and labels with the statement that they stand before.
    pub(crate) scopes: Vec<Scope<'a>>,
}

/// Names between braces.
#[derive(Debug, Default)]
pub(crate) struct Scope<'a> {
    pub(crate) outer: Option<usize>,
    pub(crate) registers: HashMap<&'a str, Class>,
    pub(crate) families: HashMap<&'a str, Class>,
    pub(crate) labels: HashMap<&'a str, usize>,
}

/// A module as it is written.
#[derive(Debug, Default)]
pub(crate) struct Module<'a> {
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) entries: Vec<Entry<'a>>,
}

/// Reads a module.
pub(crate) fn parse(text: &str) -> Result<Module<'_>, String> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens, at: 0 };
    parser.module().map_err(|why| {
        let line = parser.line();
        format!("PTX, line {line}: {why}")
    })
}

struct Parser<'a> {
    tokens: Vec<Placed<'a>>,
    at: usize,
}

/// Bytes and class of a type such as `.u32`.
pub(crate) fn size_of(kind: &str) -> Option<(u64, Class)> {
    Some(match kind {
        ".pred" => (1, Class::Predicate),
        ".b8" | ".u8" | ".s8" => (1, Class::Word),
        ".b16" | ".u16" | ".s16" | ".f16" => (2, Class::Word),
        ".b32" | ".u32" | ".s32" | ".f32" => (4, Class::Word),
        ".b64" | ".u64" | ".s64" | ".f64" => (8, Class::Double),
        _ => return None,
    })
}

/// A number as PTX writes it.
fn number(text: &str) -> Result<u64, String> {
    let bad = || format!("{text} is no number");
    let text = text.strip_suffix('U').unwrap_or(text);
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u64::from_str_radix(bits, 16).map_err(|_| bad());
    }
    for prefix in ["0x", "0X", "0d", "0D"] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return u64::from_str_radix(digits, 16).map_err(|_| bad());
        }
    }
    if text.contains('.') {
        return text.parse().map(f64::to_bits).map_err(|_| bad());
    }
    text.parse().map_err(|_| bad())
}

impl<'a> Parser<'a> {
    fn line(&self) -> u32 {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(self.at.min(last)).map_or(0, |token| token.1)
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|token| token.0)
    }

    fn next(&mut self) -> Result<Token<'a>, String> {
        let token = self.peek().ok_or("the text ends here")?;
        self.at += 1;
        Ok(token)
    }

    fn takes(&mut self, sign: u8) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: u8) -> Result<(), String> {
        let found = self.peek();
        if self.takes(sign) {
            return Ok(());
        }
        Err(format!("{found:?} where `{}` should be", char::from(sign)))
    }

    fn word(&mut self) -> Result<&'a str, String> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => Err(format!("{other:?} where a name should be")),
        }
    }

    fn number(&mut self) -> Result<u64, String> {
        let negative = self.takes(b'-');
        match self.next()? {
            Token::Number(text) => {
                let value = number(text)?;
                Ok(if negative { value.wrapping_neg() } else { value })
            }
            other => Err(format!("{other:?} where a number should be")),
        }
    }

    fn module(&mut self) -> Result<Module<'a>, String> {
        let mut module = Module::default();
        while self.peek().is_some() {
            match self.word()? {
                ".version" => drop(self.next()?),
                ".target" => {
                    self.word()?;
                    while self.takes(b',') {
                        self.word()?;
                    }
                }
                ".address_size" => drop(self.number()?),
                ".visible" | ".extern" | ".weak" => {}
                space @ (".global" | ".shared" | ".const") => module.variables.push(self.variable(space)?),
                ".entry" => module.entries.push(self.entry()?),
                other => return Err(format!("the emulator has no `{other}`")),
            }
        }
        Ok(module)
    }

    /// What stands behind `.global` and its like, up to the semicolon.
    fn variable(&mut self, space: &'a str) -> Result<Variable<'a>, String> {
        let variable = self.declared(space)?;
        self.expect(b';')?;
        Ok(variable)
    }

    fn declared(&mut self, space: &'a str) -> Result<Variable<'a>, String> {
        let mut align = 0;
        let mut kind = self.word()?;
        if kind == ".align" {
            align = self.number()?;
            kind = self.word()?;
        }
        let (element, _) = size_of(kind).ok_or_else(|| format!("the emulator has no type `{kind}`"))?;
        let (name, mut bytes) = (self.word()?, element);
        if self.takes(b'[') {
            bytes = 0;
            if self.peek() != Some(Token::Sign(b']')) {
                bytes = self.number()? * element;
            }
            self.expect(b']')?;
        }
        let mut contents = Vec::new();
        if self.takes(b'=') {
            let list = self.takes(b'{');
            loop {
                contents.extend(&self.number()?.to_le_bytes()[..element as usize]);
                if !list || !self.takes(b',') {
                    break;
                }
            }
            if list {
                self.expect(b'}')?;
            }
        }
        Ok(Variable {
            name,
            space,
            align: align.max(element),
            bytes,
            contents,
        })
    }

    fn entry(&mut self) -> Result<Entry<'a>, String> {
        let mut entry = Entry {
            name: self.word()?,
            scopes: vec![Scope::default()],
            ..Entry::default()
        };
        if self.takes(b'(') {
            while !self.takes(b')') {
                match self.word()? {
                    ".param" => entry.parameters.push(self.declared(".param")?),
                    other => return Err(format!("`{other}` among parameters")),
                }
                self.takes(b',');
            }
        }
        while !self.takes(b'{') {
            self.word()?; // what the launch has to hold to: .maxntid and its like
            while !matches!(self.peek(), Some(Token::Word(_) | Token::Sign(b'{'))) {
                self.next()?;
            }
        }
        let mut scope = 0;
        loop {
            if self.takes(b'{') {
                entry.scopes.push(Scope {
                    outer: Some(scope),
                    ..Scope::default()
                });
                scope = entry.scopes.len() - 1;
            } else if self.takes(b'}') {
                match entry.scopes[scope].outer {
                    Some(outer) => scope = outer,
                    None => return Ok(entry),
                }
            } else {
                self.statement(&mut entry, scope)?;
            }
        }
    }

    fn statement(&mut self, entry: &mut Entry<'a>, scope: usize) -> Result<(), String> {
        let line = self.line();
        let mut guard = None;
        if self.takes(b'@') {
            let negated = self.takes(b'!');
            guard = Some((self.word()?, negated));
        }
        let opcode = self.word()?;
        match opcode {
            ".reg" => return self.registers(&mut entry.scopes[scope]),
            ".shared" | ".local" => {
                entry.variables.push(self.variable(opcode)?);
                return Ok(());
            }
            ".pragma" => {
                self.next()?;
                return self.expect(b';');
            }
            _ => {}
        }
        if self.takes(b':') {
            let at = entry.statements.len();
            entry.scopes[scope].labels.insert(opcode, at);
            return Ok(());
        }
        let mut operands = Vec::new();
        while !self.takes(b';') {
            operands.push(self.operand()?);
            self.takes(b',');
        }
        entry.statements.push(Statement {
            line,
            guard,
            opcode,
            operands,
            scope,
        });
        Ok(())
    }

    fn registers(&mut self, scope: &mut Scope<'a>) -> Result<(), String> {
        let kind = self.word()?;
        let (_, class) = size_of(kind).ok_or_else(|| format!("the emulator has no type `{kind}`"))?;
        loop {
            let name = self.word()?;
            if self.takes(b'<') {
                self.number()?;
                self.expect(b'>')?;
                scope.families.insert(name, class);
            } else {
                scope.registers.insert(name, class);
            }
            if !self.takes(b',') {
                return self.expect(b';');
            }
        }
    }

    fn operand(&mut self) -> Result<Operand<'a>, String> {
        if self.takes(b'!') {
            return Ok(Operand::Not(self.word()?));
        }
        if self.takes(b'{') {
            let mut list = Vec::new();
            while !self.takes(b'}') {
                list.push(self.operand()?);
                self.takes(b',');
            }
            return Ok(Operand::List(list));
        }
        if self.takes(b'[') {
            let base = self.operand()?;
            let offset = if self.takes(b'+') { self.number()? } else { 0 };
            self.expect(b']')?;
            return Ok(Operand::Address(Box::new(base), offset as i64));
        }
        if let Some(Token::Word(name)) = self.peek() {
            self.at += 1;
            if self.takes(b'|') {
                return Ok(Operand::Pair(name, self.word()?));
            }
            return Ok(Operand::Name(name));
        }
        Ok(Operand::Number(self.number()?))
    }
}
