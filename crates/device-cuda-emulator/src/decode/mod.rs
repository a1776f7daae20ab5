//! From what is written to what is run: opcodes get their meaning, and whatever has none is an error.

mod asynchronous;
mod numbers;
mod places;

use crate::kernel::{Inst, Kernel, NONE, Op};
use crate::names::{Names, SHARED_BASE};
use crate::parser::{Class, Entry, Module, Operand, Statement, Variable};
use crate::rows;
use std::collections::HashMap;
use std::sync::Arc;

/// A kernel of a module. `globals` has the addresses of the module's variables.
pub(crate) fn kernel(
    module: &Module<'_>,
    entry: &Entry<'_>,
    globals: &HashMap<&str, u64>,
    text: &Arc<str>,
) -> Result<Kernel, String> {
    let mut variables: HashMap<&str, u64> = globals.iter().map(|(name, at)| (*name, *at)).collect();
    let mut parameters = Vec::new();
    let mut end = 0;
    for parameter in &entry.parameters {
        let at = u64::next_multiple_of(end, parameter.align.max(1));
        parameters.push((at as usize, parameter.bytes as usize));
        variables.insert(parameter.name, at);
        end = at + parameter.bytes;
    }
    let shared: Vec<&Variable<'_>> = module
        .variables
        .iter()
        .chain(&entry.variables)
        .filter(|variable| variable.space == ".shared")
        .collect();
    let shared_end = place(&shared, entry, &mut variables);
    let mut local = 0;
    for variable in entry
        .variables
        .iter()
        .filter(|variable| variable.space == ".local")
    {
        local = u64::next_multiple_of(local, variable.align);
        variables.insert(variable.name, local);
        local += variable.bytes;
    }
    let mut decoder = Decoder {
        names: Names::new(entry, variables),
        lists: Vec::new(),
    };
    let mut code = Vec::new();
    for statement in &entry.statements {
        let inst = decoder.statement(statement).map_err(|why| {
            let (line, opcode) = (statement.line, statement.opcode);
            format!("kernel {}, line {line}, {opcode}: {why}", entry.name)
        })?;
        code.push(inst);
    }
    code.push(plain(Op::Exit));
    let Decoder { names, mut lists } = decoder;
    let rows = rows::assign(&mut code, &mut lists, names);
    Ok(Kernel {
        name: entry.name.to_owned(),
        code,
        lists,
        rows,
        parameters,
        shared_end,
        local: local as usize,
        text: Arc::clone(text),
    })
}

/// Gives the shared variables that a kernel names their places, and what has no size the one behind them.
fn place<'a>(shared: &[&Variable<'a>], entry: &Entry<'a>, variables: &mut HashMap<&'a str, u64>) -> usize {
    let named = |name: &str| {
        entry
            .statements
            .iter()
            .flat_map(|statement| &statement.operands)
            .any(|operand| match operand {
                Operand::Name(found) => *found == name,
                Operand::Address(base, _) => **base == Operand::Name(name),
                _ => false,
            })
    };
    let (mut end, mut last) = (SHARED_BASE, 16);
    for variable in shared
        .iter()
        .filter(|variable| variable.bytes > 0 && named(variable.name))
    {
        end = end.next_multiple_of(variable.align);
        variables.insert(variable.name, end);
        end += variable.bytes;
    }
    let open = || {
        shared
            .iter()
            .filter(|variable| variable.bytes == 0 && named(variable.name))
    };
    open().for_each(|variable| last = last.max(variable.align));
    end = end.next_multiple_of(last);
    variables.extend(open().map(|variable| (variable.name, end)));
    end as usize
}

/// A statement with its opcode in parts.
pub(crate) struct Line<'s, 'a> {
    /// The parts of the opcode; the first says what it does.
    pub(crate) parts: Vec<&'a str>,
    pub(crate) operands: &'s [Operand<'a>],
    pub(crate) scope: usize,
}

impl<'a> Line<'_, 'a> {
    pub(crate) fn has(&self, part: &str) -> bool {
        self.parts[1..].contains(&part)
    }

    pub(crate) fn last(&self) -> &'a str {
        self.parts[self.parts.len() - 1]
    }

    pub(crate) fn operand(&self, index: usize) -> Result<&Operand<'a>, String> {
        let found = self.operands.get(index);
        found.ok_or_else(|| format!("there is no operand {index}"))
    }

    /// A number among the operands.
    pub(crate) fn number(&self, index: usize) -> Result<i64, String> {
        match self.operand(index)? {
            Operand::Number(value) => Ok(*value as i64),
            other => Err(format!("{other:?} is no number")),
        }
    }
}

/// What an opcode became so far.
pub(crate) type Decoded = Result<Option<Inst>, String>;

/// An instruction without operands.
pub(crate) fn plain(op: Op) -> Inst {
    Inst {
        op,
        guard: NONE,
        negated: false,
        to: [NONE; 2],
        from: [NONE; 4],
        number: 0,
        list: (0, 0, 0),
        line: 0,
    }
}

/// What becomes of the statements of a kernel.
pub(crate) struct Decoder<'e, 'a> {
    pub(crate) names: Names<'e, 'a>,
    pub(crate) lists: Vec<u32>,
}

impl<'a> Decoder<'_, 'a> {
    fn statement(&mut self, statement: &Statement<'a>) -> Result<Inst, String> {
        let line = Line {
            parts: statement.opcode.split('.').collect(),
            operands: &statement.operands,
            scope: statement.scope,
        };
        let mut decoded = self.moves(&line)?;
        for family in [
            Self::whole,
            Self::floating,
            Self::predicates,
            Self::accesses,
            Self::warps,
            Self::waits,
            Self::copies,
        ] {
            if decoded.is_none() {
                decoded = family(self, &line)?;
            }
        }
        let mut inst = decoded.ok_or_else(|| "the emulator does not have it".to_owned())?;
        inst.line = statement.line;
        if let Some((name, negated)) = statement.guard {
            inst.guard = self.names.predicate(&Operand::Name(name), statement.scope)?;
            inst.negated = negated;
        }
        Ok(inst)
    }

    pub(crate) fn word_to(&mut self, line: &Line<'_, 'a>, index: usize) -> Result<u32, String> {
        self.names.result(line.operand(index)?, line.scope, Class::Word)
    }

    pub(crate) fn double_to(&mut self, line: &Line<'_, 'a>, index: usize) -> Result<u32, String> {
        self.names.result(line.operand(index)?, line.scope, Class::Double)
    }

    pub(crate) fn predicate_to(&mut self, line: &Line<'_, 'a>, index: usize) -> Result<u32, String> {
        self.names
            .result(line.operand(index)?, line.scope, Class::Predicate)
    }

    pub(crate) fn word(&mut self, line: &Line<'_, 'a>, index: usize) -> Result<u32, String> {
        self.names.word(line.operand(index)?, line.scope)
    }

    pub(crate) fn double(&mut self, line: &Line<'_, 'a>, index: usize) -> Result<u32, String> {
        self.names.double(line.operand(index)?, line.scope)
    }

    pub(crate) fn predicate(&mut self, line: &Line<'_, 'a>, index: usize) -> Result<u32, String> {
        self.names.predicate(line.operand(index)?, line.scope)
    }

    /// A word that becomes of so many words.
    pub(crate) fn words(&mut self, line: &Line<'_, 'a>, op: Op, from: usize) -> Result<Inst, String> {
        let mut inst = plain(op);
        inst.to[0] = self.word_to(line, 0)?;
        for index in 0..from {
            inst.from[index] = self.word(line, 1 + index)?;
        }
        Ok(inst)
    }

    /// A double that becomes of so many doubles.
    pub(crate) fn doubles(&mut self, line: &Line<'_, 'a>, op: Op, from: usize) -> Result<Inst, String> {
        let mut inst = plain(op);
        inst.to[0] = self.double_to(line, 0)?;
        for index in 0..from {
            inst.from[index] = self.double(line, 1 + index)?;
        }
        Ok(inst)
    }

    /// Registers of one class in a list: those written come first.
    pub(crate) fn list(
        &mut self,
        line: &Line<'_, 'a>,
        class: Class,
        written: &[&Operand<'a>],
        read: &[&Operand<'a>],
    ) -> Result<(u32, u16, u16), String> {
        let start = self.lists.len();
        for operand in written {
            let id = self.names.result(operand, line.scope, class)?;
            self.lists.push(id);
        }
        for operand in read {
            let id = match class {
                Class::Double => self.names.double(operand, line.scope)?,
                _ => self.names.word(operand, line.scope)?,
            };
            self.lists.push(id);
        }
        let all = written.len() + read.len();
        Ok((start as u32, written.len() as u16, all as u16))
    }
}

/// The operands of `{a, b}`, or the one that stands alone.
pub(crate) fn each<'o, 'a>(operand: &'o Operand<'a>) -> Vec<&'o Operand<'a>> {
    match operand {
        Operand::List(list) => list.iter().collect(),
        other => vec![other],
    }
}
