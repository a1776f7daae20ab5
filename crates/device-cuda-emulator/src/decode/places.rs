//! Loads, stores and changes of memory; addresses; what lanes of a warp do together; branches.

use super::{Decoded, Decoder, Line, each, plain};
use crate::kernel::{Access, Change, Fold, Op, Shuffle, Space, Vote};
use crate::parser::{Class, Operand, size_of};

/// Words of an opcode that say how memory is cached or ordered, which changes nothing here.
const HINTS: [&str; 14] = [
    "volatile", "relaxed", "acquire", "release", "acq_rel", "weak", "gpu", "cta", "sys", "nc", "cg", "cv",
    "ca", "cs",
];

fn space_of(part: &str) -> Option<Space> {
    Some(match part {
        "global" => Space::Global,
        "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Parameter,
        _ => return None,
    })
}

impl<'a> Decoder<'_, 'a> {
    pub(super) fn accesses(&mut self, line: &Line<'_, 'a>) -> Decoded {
        match line.parts[0] {
            "ld" => self.access(line, true),
            "st" => self.access(line, false),
            "atom" | "red" => self.change(line),
            "cvta" => self.addresses(line),
            "mapa" => self.words(line, Op::PlaceOf, 2).map(Some),
            "prefetch" | "membar" | "fence" | "nanosleep" | "griddepcontrol" | "setmaxnreg"
            | "createpolicy" => {
                // Created policies are never read.
                Ok(Some(plain(Op::Nothing)))
            }
            _ => Ok(None),
        }
    }

    fn access(&mut self, line: &Line<'_, 'a>, load: bool) -> Decoded {
        let (mut space, mut count) = (Space::Generic, 1);
        for part in &line.parts[1..line.parts.len() - 1] {
            match *part {
                "v2" => count = 2,
                "v4" => count = 4,
                part if HINTS.contains(&part) => {}
                part => match space_of(part) {
                    Some(found) => space = found,
                    None => return Ok(None),
                },
            }
        }
        let kind = format!(".{}", line.last());
        let Some((bytes, _)) = size_of(&kind) else {
            return Ok(None);
        };
        let (address, value) = if load { (1, 0) } else { (0, 1) };
        let (base, offset, far) = self.names.address(line.operand(address)?, line.scope)?;
        let values = each(line.operand(value)?);
        let class = values
            .iter()
            .find_map(|value| self.names.class_of(value, line.scope));
        let double = class.map_or(bytes == 8, |class| class == Class::Double);
        let class = if double { Class::Double } else { Class::Word };
        if values.len() != count as usize || space == Space::Parameter && !load {
            return Ok(None);
        }
        let access = Access {
            space,
            bytes: bytes as u8,
            count,
            signed: line.last().starts_with('s'),
            double,
            far,
        };
        let mut inst = plain(if load { Op::Load(access) } else { Op::Store(access) });
        inst.from[0] = base;
        inst.number = offset;
        inst.list = if load {
            self.list(line, class, &values, &[])?
        } else {
            self.list(line, class, &[], &values)?
        };
        Ok(Some(inst))
    }

    fn change(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let (mut space, mut name) = (Space::Generic, "");
        for part in &line.parts[1..line.parts.len() - 1] {
            if let Some(found) = space_of(part) {
                space = found;
            } else if !HINTS.contains(part) {
                name = part;
            }
        }
        let (signed, float) = (line.last().starts_with('s'), line.last() == "f32");
        let change = match (name, signed) {
            ("add", _) if float => Change::AddFloat,
            ("add", _) => Change::Add,
            ("and", _) => Change::And,
            ("or", _) => Change::Or,
            ("xor", _) => Change::Xor,
            ("min", true) => Change::MinSigned,
            ("min", false) => Change::Min,
            ("max", true) => Change::MaxSigned,
            ("max", false) => Change::Max,
            ("exch", _) => Change::Exchange,
            ("cas", _) => Change::CompareExchange,
            _ => return Ok(None),
        };
        let double = match line.last() {
            "u32" | "s32" | "b32" | "f32" => false,
            "u64" | "s64" | "b64" => true,
            _ => return Ok(None),
        };
        let first = usize::from(line.parts[0] == "atom");
        let (base, offset, far) = self.names.address(line.operand(first)?, line.scope)?;
        let mut inst = plain(Op::Change {
            change,
            space,
            double,
            far,
        });
        let sink = Operand::Name("_");
        let to = if first == 1 { line.operand(0)? } else { &sink };
        let class = if double { Class::Double } else { Class::Word };
        inst.to[0] = self.names.result(to, line.scope, class)?;
        inst.from[0] = base;
        inst.number = offset;
        let values = if change == Change::CompareExchange { 2 } else { 1 };
        for index in 0..values {
            let at = first + 1 + index;
            inst.from[1 + index] = if double {
                self.double(line, at)?
            } else {
                self.word(line, at)?
            };
        }
        Ok(Some(inst))
    }

    fn addresses(&mut self, line: &Line<'_, 'a>) -> Decoded {
        if line.last() != "u64" {
            return Ok(None);
        }
        let op = match line.parts[1..line.parts.len() - 1] {
            ["to", _] => Op::FromGeneric,
            ["global"] => Op::MoveDouble,
            [space] => match space_of(space) {
                Some(space @ (Space::Shared | Space::Local)) => Op::ToGeneric(space),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        self.doubles(line, op, 1).map(Some)
    }

    /// What lanes of a warp do together, and where they go.
    pub(super) fn warps(&mut self, line: &Line<'_, 'a>) -> Decoded {
        match line.parts[0] {
            "bra" => {
                let Operand::Name(label) = line.operand(0)? else {
                    return Ok(None);
                };
                let mut inst = plain(Op::Branch);
                inst.number = self.names.label(label, line.scope)? as i64;
                Ok(Some(inst))
            }
            "ret" | "exit" => Ok(Some(plain(Op::Exit))),
            "trap" => Ok(Some(plain(Op::Trap))),
            "activemask" => self.words(line, Op::ActiveMask, 0).map(Some),
            "shfl" => self.shuffle(line),
            "vote" => self.vote(line),
            "match" if line.parts[1..] == ["any", "sync", "b32"] => self.words(line, Op::Match, 2).map(Some),
            "redux" => {
                let Some(fold) = fold_of(line.parts[2], line.last().starts_with('s')) else {
                    return Ok(None);
                };
                self.words(line, Op::Fold(fold), 2).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn shuffle(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let shuffle = match line.parts[1..] {
            ["sync", "idx", "b32"] => Shuffle::Index,
            ["sync", "up", "b32"] => Shuffle::Up,
            ["sync", "down", "b32"] => Shuffle::Down,
            ["sync", "bfly", "b32"] => Shuffle::Butterfly,
            _ => return Ok(None),
        };
        let mut inst = plain(Op::Shuffle(shuffle));
        let sink = Operand::Name("_");
        let (value, inside) = match line.operand(0)? {
            Operand::Pair(value, inside) => (Operand::Name(value), Operand::Name(inside)),
            other => (other.clone(), sink),
        };
        inst.to[0] = self.names.result(&value, line.scope, Class::Word)?;
        inst.to[1] = self.names.result(&inside, line.scope, Class::Predicate)?;
        for index in 0..4 {
            inst.from[index] = self.word(line, 1 + index)?;
        }
        Ok(Some(inst))
    }

    fn vote(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let vote = match line.parts[1..] {
            ["sync", "ballot", "b32"] => Vote::Ballot,
            ["sync", "any", "pred"] => Vote::Any,
            ["sync", "all", "pred"] => Vote::All,
            ["sync", "uni", "pred"] => Vote::Uniform,
            _ => return Ok(None),
        };
        let mut inst = plain(Op::Vote(vote));
        inst.to[0] = if vote == Vote::Ballot {
            self.word_to(line, 0)?
        } else {
            self.predicate_to(line, 0)?
        };
        inst.from[0] = self.predicate(line, 1)?;
        inst.from[1] = self.word(line, 2)?;
        Ok(Some(inst))
    }
}

/// What a name folds by.
pub(super) fn fold_of(name: &str, signed: bool) -> Option<Fold> {
    Some(match (name, signed) {
        ("min", true) => Fold::MinSigned,
        ("min", false) => Fold::Min,
        ("max", true) => Fold::MaxSigned,
        ("max", false) => Fold::Max,
        ("add", _) => Fold::Add,
        ("and", _) => Fold::And,
        ("or", _) => Fold::Or,
        ("xor", _) => Fold::Xor,
        ("popc", _) => Fold::Count,
        _ => return None,
    })
}
