//! What the names in a kernel stand for: registers, constants, variables.

use crate::kernel::{NONE, Special};
use crate::parser::{Class, Entry, Operand};
use std::collections::HashMap;

/// Where shared memory begins: address 0 is nowhere.
pub(crate) const SHARED_BASE: u64 = 1024;

/// Which file a register's number is of, until registers have their rows: it stands in the upper bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Predicate,
    Word,
    Double,
    WordConstant,
    DoubleConstant,
    Special,
    /// 0 is false, 1 is true.
    PredicateConstant,
}

const KINDS: [Kind; 7] = [
    Kind::Predicate,
    Kind::Word,
    Kind::Double,
    Kind::WordConstant,
    Kind::DoubleConstant,
    Kind::Special,
    Kind::PredicateConstant,
];
const SHIFT: u32 = 28;

/// A register of a kind.
pub(crate) fn tagged(kind: Kind, index: usize) -> u32 {
    (kind as u32) << SHIFT | index as u32
}

/// The kind and the number of a register; `None` of [`NONE`].
pub(crate) fn untagged(id: u32) -> Option<(Kind, usize)> {
    let kind = KINDS.get((id >> SHIFT) as usize)?;
    (id != NONE).then_some((*kind, (id & ((1 << SHIFT) - 1)) as usize))
}

/// All names of a kernel, and the constants in it.
pub(crate) struct Names<'e, 'a> {
    pub(crate) entry: &'e Entry<'a>,
    /// Addresses of variables and places of parameters.
    pub(crate) variables: HashMap<&'a str, u64>,
    registers: HashMap<(usize, &'a str), u32>,
    /// Registers of each class so far; the first of each is for what nobody wants.
    pub(crate) counts: [usize; 3],
    pub(crate) words: Vec<u32>,
    pub(crate) doubles: Vec<u64>,
    pub(crate) specials: Vec<Special>,
}

impl<'e, 'a> Names<'e, 'a> {
    pub(crate) fn new(entry: &'e Entry<'a>, variables: HashMap<&'a str, u64>) -> Self {
        Self {
            entry,
            variables,
            registers: HashMap::new(),
            counts: [1; 3],
            words: Vec::new(),
            doubles: Vec::new(),
            specials: Vec::new(),
        }
    }

    /// The class of a register and the scope that declares it.
    fn declared(&self, name: &str, mut scope: usize) -> Option<(usize, Class)> {
        let family = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
        loop {
            let names = &self.entry.scopes[scope];
            let class = names.registers.get(name).or_else(|| names.families.get(family));
            if let Some(class) = class {
                return Some((scope, *class));
            }
            scope = names.outer?;
        }
    }

    fn register(&mut self, name: &'a str, scope: usize, class: Class) -> Result<Option<u32>, String> {
        let Some((scope, found)) = self.declared(name, scope) else {
            return Ok(None);
        };
        if found != class {
            return Err(format!("{name} is not of the size that is needed"));
        }
        let (kind, count) = match class {
            Class::Predicate => (Kind::Predicate, &mut self.counts[0]),
            Class::Word => (Kind::Word, &mut self.counts[1]),
            Class::Double => (Kind::Double, &mut self.counts[2]),
        };
        let id = *self.registers.entry((scope, name)).or_insert_with(|| {
            *count += 1;
            tagged(kind, *count - 1)
        });
        Ok(Some(id))
    }

    /// A place for a result.
    pub(crate) fn result(
        &mut self,
        operand: &Operand<'a>,
        scope: usize,
        class: Class,
    ) -> Result<u32, String> {
        let kind = match class {
            Class::Predicate => Kind::Predicate,
            Class::Word => Kind::Word,
            Class::Double => Kind::Double,
        };
        match operand {
            Operand::Name("_") => Ok(tagged(kind, 0)),
            Operand::Name(name) => self
                .register(name, scope, class)?
                .ok_or_else(|| format!("{name} is no register")),
            other => Err(format!("{other:?} is no place for a result")),
        }
    }

    pub(crate) fn class_of(&self, operand: &Operand<'a>, scope: usize) -> Option<Class> {
        match operand {
            Operand::Name(name) => self.declared(name, scope).map(|(_, class)| class),
            _ => None,
        }
    }

    pub(crate) fn word(&mut self, operand: &Operand<'a>, scope: usize) -> Result<u32, String> {
        match operand {
            Operand::Number(value) => Ok(self.word_constant(*value as u32)),
            Operand::Name(name) => {
                if let Some(id) = self.register(name, scope, Class::Word)? {
                    return Ok(id);
                }
                if let Some(address) = self.variables.get(name) {
                    let address = u32::try_from(*address).map_err(|_| format!("{name} is far away"))?;
                    return Ok(self.word_constant(address));
                }
                self.special(name)
            }
            other => Err(format!("{other:?} is no word")),
        }
    }

    pub(crate) fn double(&mut self, operand: &Operand<'a>, scope: usize) -> Result<u32, String> {
        match operand {
            Operand::Number(value) => Ok(self.double_constant(*value)),
            Operand::Name(name) => {
                if let Some(id) = self.register(name, scope, Class::Double)? {
                    return Ok(id);
                }
                let address = self.variables.get(name).copied();
                let address = address.ok_or_else(|| format!("the emulator has no `{name}`"))?;
                Ok(self.double_constant(address))
            }
            other => Err(format!("{other:?} is no double")),
        }
    }

    pub(crate) fn predicate(&mut self, operand: &Operand<'a>, scope: usize) -> Result<u32, String> {
        match operand {
            Operand::Name(name) => self
                .register(name, scope, Class::Predicate)?
                .ok_or_else(|| format!("{name} is no predicate")),
            Operand::Number(value) => Ok(tagged(Kind::PredicateConstant, usize::from(*value != 0))),
            other => Err(format!("{other:?} is no predicate")),
        }
    }

    pub(crate) fn word_constant(&mut self, value: u32) -> u32 {
        let known = self.words.iter().position(|known| *known == value);
        let index = known.unwrap_or_else(|| {
            self.words.push(value);
            self.words.len() - 1
        });
        tagged(Kind::WordConstant, index)
    }

    pub(crate) fn double_constant(&mut self, value: u64) -> u32 {
        let known = self.doubles.iter().position(|known| *known == value);
        let index = known.unwrap_or_else(|| {
            self.doubles.push(value);
            self.doubles.len() - 1
        });
        tagged(Kind::DoubleConstant, index)
    }

    fn special(&mut self, name: &str) -> Result<u32, String> {
        let axis = |end: &str| {
            ["x", "y", "z"]
                .iter()
                .position(|axis| *axis == end)
                .map(|axis| axis as u8)
        };
        let (head, end) = name.split_once('.').unwrap_or((name, ""));
        let special = match (head, axis(end)) {
            ("%tid", Some(axis)) => Special::Thread(axis),
            ("%ntid", Some(axis)) => Special::Threads(axis),
            ("%ctaid", Some(axis)) => Special::Block(axis),
            ("%nctaid", Some(axis)) => Special::Blocks(axis),
            ("%laneid", None) => Special::Lane,
            ("%warpid", None) => Special::Warp,
            ("%cluster_ctarank", None) => Special::RankInCluster,
            ("%cluster_nctarank", None) => Special::BlocksOfCluster,
            _ => return Err(format!("the emulator has no `{name}`")),
        };
        let known = self.specials.iter().position(|known| *known == special);
        let index = known.unwrap_or_else(|| {
            self.specials.push(special);
            self.specials.len() - 1
        });
        Ok(tagged(Kind::Special, index))
    }

    /// A base and an offset, and whether the base is a double.
    pub(crate) fn address(
        &mut self,
        operand: &Operand<'a>,
        scope: usize,
    ) -> Result<(u32, i64, bool), String> {
        let Operand::Address(base, offset) = operand else {
            return Err(format!("{operand:?} is no address"));
        };
        if self.class_of(base, scope) == Some(Class::Word) {
            return Ok((self.word(base, scope)?, *offset, false));
        }
        Ok((self.double(base, scope)?, *offset, true))
    }

    /// The statement that a label stands before.
    pub(crate) fn label(&self, name: &str, mut scope: usize) -> Result<usize, String> {
        loop {
            let names = &self.entry.scopes[scope];
            if let Some(at) = names.labels.get(name) {
                return Ok(*at);
            }
            scope = names.outer.ok_or_else(|| format!("there is no label {name}"))?;
        }
    }
}
