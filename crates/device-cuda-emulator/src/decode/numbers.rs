//! Moves, arithmetic, comparisons and conversions.

use super::{Decoded, Decoder, Line, each, plain};
use crate::kernel::{Bits, Compare, Conversion, Factor, Float, Function, Inst, Op, Rounding, Type, Whole};
use crate::parser::{Class, Operand};

/// Whether a type is signed, and its bits.
fn whole_type(kind: &str) -> Option<(bool, u32)> {
    Some(match kind {
        "u16" | "b16" => (false, 16),
        "s16" => (true, 16),
        "u32" | "b32" => (false, 32),
        "s32" => (true, 32),
        "u64" | "b64" => (false, 64),
        "s64" => (true, 64),
        _ => return None,
    })
}

fn type_of(kind: &str) -> Option<Type> {
    Some(match kind {
        "u8" => Type::U8,
        "s8" => Type::S8,
        "u16" | "b16" => Type::U16,
        "s16" => Type::S16,
        "u32" | "b32" => Type::U32,
        "s32" => Type::S32,
        "u64" | "b64" => Type::U64,
        "s64" => Type::S64,
        "f16" => Type::F16,
        "bf16" => Type::Bf16,
        "f32" => Type::F32,
        "f64" => Type::F64,
        _ => return None,
    })
}

fn is_double(kind: Type) -> bool {
    matches!(kind, Type::U64 | Type::S64 | Type::F64)
}

/// Arithmetic of two whole numbers, by its name.
fn arithmetic(name: &str, signed: bool) -> Option<Whole> {
    Some(match (name, signed) {
        ("add", _) => Whole::Add,
        ("sub", _) => Whole::Sub,
        ("div", true) => Whole::DivSigned,
        ("div", false) => Whole::Div,
        ("rem", true) => Whole::RemSigned,
        ("rem", false) => Whole::Rem,
        ("min", true) => Whole::MinSigned,
        ("min", false) => Whole::Min,
        ("max", true) => Whole::MaxSigned,
        ("max", false) => Whole::Max,
        ("and", _) => Whole::And,
        ("or", _) => Whole::Or,
        ("xor", _) => Whole::Xor,
        ("shl", _) => Whole::Left,
        ("shr", true) => Whole::RightSigned,
        ("shr", false) => Whole::Right,
        _ => return None,
    })
}

impl<'a> Decoder<'_, 'a> {
    /// Moves, and the joining and splitting of registers.
    pub(super) fn moves(&mut self, line: &Line<'_, 'a>) -> Decoded {
        if line.parts[0] != "mov" {
            return Ok(None);
        }
        let kind = line.last();
        let (to, from) = (line.operand(0)?, line.operand(1)?);
        if let Operand::Name(clock) = from
            && matches!(*clock, "%globaltimer" | "%clock64")
        {
            return self.doubles(line, Op::Clock, 0).map(Some);
        }
        if let Operand::List(_) = from {
            let parts = each(from);
            let op = if kind == "b64" {
                Op::JoinWords
            } else {
                Op::JoinHalves
            };
            let mut inst = plain(op);
            inst.to[0] = if kind == "b64" {
                self.double_to(line, 0)?
            } else {
                self.word_to(line, 0)?
            };
            inst.from[0] = self.names.word(parts[0], line.scope)?;
            inst.from[1] = self.names.word(parts[1], line.scope)?;
            return Ok((parts.len() == 2).then_some(inst));
        }
        if let Operand::List(_) = to {
            let parts = each(to);
            let op = if kind == "b64" {
                Op::SplitDouble
            } else {
                Op::SplitWord
            };
            let mut inst = plain(op);
            inst.from[0] = if kind == "b64" {
                self.double(line, 1)?
            } else {
                self.word(line, 1)?
            };
            inst.to[0] = self.names.result(parts[0], line.scope, Class::Word)?;
            inst.to[1] = self.names.result(parts[1], line.scope, Class::Word)?;
            return Ok((parts.len() == 2).then_some(inst));
        }
        match (kind, from) {
            ("pred", _) => {
                let mut inst = plain(Op::MovePredicate);
                inst.to[0] = self.predicate_to(line, 0)?;
                inst.from[0] = self.predicate(line, 1)?;
                Ok(Some(inst))
            }
            ("b64" | "u64" | "s64" | "f64", _) => self.doubles(line, Op::MoveDouble, 1).map(Some),
            _ => self.words(line, Op::MoveWord, 1).map(Some),
        }
    }

    /// Whole numbers.
    pub(super) fn whole(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let Some((signed, bits)) = whole_type(line.last()) else {
            return Ok(None);
        };
        let (half, name) = (bits == 16, line.parts[0]);
        if line.has("cc") {
            return Ok(None);
        }
        if let Some(op) = arithmetic(name, signed) {
            if bits < 64 {
                return self.words(line, Op::Whole(op, half), 2).map(Some);
            }
            let mut inst = self.doubles(line, Op::WholeDouble(op), 1)?;
            let shift = matches!(op, Whole::Left | Whole::Right | Whole::RightSigned);
            inst.from[1] = if shift {
                self.word(line, 2)?
            } else {
                self.double(line, 2)?
            };
            return Ok(Some(inst));
        }
        match name {
            "mul" | "mad" => self.products(line, signed, bits),
            "not" | "neg" | "abs" | "popc" | "clz" | "brev" | "bfind" => self.bits(line, bits),
            "lop3" if bits == 32 => {
                let mut inst = self.words(line, Op::Lop3, 3)?;
                inst.number = line.number(4)?;
                Ok(Some(inst))
            }
            "prmt" if line.parts.len() == 2 => self.words(line, Op::Permute, 3).map(Some),
            "bfe" if bits == 32 => self.words(line, Op::Extract { signed }, 3).map(Some),
            "bfi" if bits == 32 => self.words(line, Op::Insert, 4).map(Some),
            "bfi" => {
                let mut inst = self.doubles(line, Op::InsertDouble, 2)?;
                inst.from[2] = self.word(line, 3)?;
                inst.from[3] = self.word(line, 4)?;
                Ok(Some(inst))
            }
            "shf" => {
                let (left, wraps) = (line.has("l"), line.has("wrap"));
                self.words(line, Op::Funnel { left, wraps }, 3).map(Some)
            }
            "selp" if bits < 64 => {
                let mut inst = self.words(line, Op::SelectWord, 2)?;
                inst.from[2] = self.predicate(line, 3)?;
                Ok(Some(inst))
            }
            "selp" => {
                let mut inst = self.doubles(line, Op::SelectDouble, 2)?;
                inst.from[2] = self.predicate(line, 3)?;
                Ok(Some(inst))
            }
            _ => Ok(None),
        }
    }

    fn products(&mut self, line: &Line<'_, 'a>, signed: bool, bits: u32) -> Decoded {
        let (half, adds) = (bits == 16, line.parts[0] == "mad");
        let inst = match (line.parts[1], adds, bits) {
            ("lo", false, 64) => self.doubles(line, Op::WholeDouble(Whole::Mul), 2)?,
            ("lo", false, _) => self.words(line, Op::Whole(Whole::Mul, half), 2)?,
            ("hi", false, 32) => {
                let op = if signed {
                    Whole::MulHighSigned
                } else {
                    Whole::MulHigh
                };
                self.words(line, Op::Whole(op, false), 2)?
            }
            ("hi", false, 64) => {
                let op = if signed {
                    Whole::MulHighSigned
                } else {
                    Whole::MulHigh
                };
                self.doubles(line, Op::WholeDouble(op), 2)?
            }
            ("wide", false, 16) => self.words(line, Op::MulWide { signed, half }, 2)?,
            ("wide", _, 32) => {
                let op = if adds {
                    Op::MulAddWide { signed }
                } else {
                    Op::MulWide { signed, half }
                };
                let mut inst = plain(op);
                inst.to[0] = self.double_to(line, 0)?;
                inst.from[0] = self.word(line, 1)?;
                inst.from[1] = self.word(line, 2)?;
                if adds {
                    inst.from[2] = self.double(line, 3)?;
                }
                inst
            }
            ("lo", true, 32) => self.words(line, Op::MulAdd, 3)?,
            ("lo", true, 64) => self.doubles(line, Op::MulAddDouble, 3)?,
            _ => return Ok(None),
        };
        Ok(Some(inst))
    }

    fn bits(&mut self, line: &Line<'_, 'a>, bits: u32) -> Decoded {
        let op = match line.parts[0] {
            "not" => Bits::Not,
            "neg" => Bits::Negative,
            "abs" => Bits::Absolute,
            "popc" => Bits::Ones,
            "clz" => Bits::LeadingZeros,
            "brev" => Bits::Reversed,
            _ if line.last().starts_with('s') => return Ok(None),
            _ if line.has("shiftamt") => Bits::ShiftToHighest,
            _ => Bits::Highest,
        };
        let counts = matches!(
            op,
            Bits::Ones | Bits::LeadingZeros | Bits::Highest | Bits::ShiftToHighest
        );
        if bits == 64 && counts {
            let mut inst = plain(Op::CountDouble(op));
            inst.to[0] = self.word_to(line, 0)?;
            inst.from[0] = self.double(line, 1)?;
            return Ok(Some(inst));
        }
        if bits == 64 {
            return self.doubles(line, Op::BitsDouble(op), 1).map(Some);
        }
        self.words(line, Op::Bits(op, bits == 16), 1).map(Some)
    }

    /// Floating numbers.
    pub(super) fn floating(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let (name, kind, flush) = (line.parts[0], line.last(), line.has("ftz"));
        if name == "cvt" {
            return self.conversions(line);
        }
        if name == "fma" && kind == "bf16x2" && line.parts[1..] == ["rn", "bf16x2"] {
            return self.words(line, Op::FmaBf16x2, 3).map(Some);
        }
        if !matches!(kind, "f32" | "f64") || line.has("sat") {
            return Ok(None);
        }
        let double = kind == "f64";
        let rounds_otherwise =
            line.has("ru") || (line.has("rm") && name != "fma") || (line.has("rz") && name != "add");
        let float = match name {
            _ if rounds_otherwise => return Ok(None),
            "add" if line.has("rz") => Float::AddToZero,
            "add" => Float::Add,
            "sub" => Float::Sub,
            "mul" => Float::Mul,
            "div" => Float::Div,
            "min" if !line.has("NaN") => Float::Min,
            "max" if !line.has("NaN") => Float::Max,
            "fma" if double => return self.doubles(line, Op::FmaDouble, 3).map(Some),
            "fma" => {
                return self
                    .words(
                        line,
                        Op::Fma {
                            down: line.has("rm"),
                            flush,
                        },
                        3,
                    )
                    .map(Some);
            }
            "selp" => return self.selected(line, double),
            _ => return self.functions(line, double, flush),
        };
        if double {
            return self.doubles(line, Op::FloatDouble(float), 2).map(Some);
        }
        self.words(line, Op::Float(float, flush), 2).map(Some)
    }

    fn selected(&mut self, line: &Line<'_, 'a>, double: bool) -> Decoded {
        let mut inst = if double {
            self.doubles(line, Op::SelectDouble, 2)?
        } else {
            self.words(line, Op::SelectWord, 2)?
        };
        inst.from[2] = self.predicate(line, 3)?;
        Ok(Some(inst))
    }

    fn functions(&mut self, line: &Line<'_, 'a>, double: bool, flush: bool) -> Decoded {
        let function = match line.parts[0] {
            "neg" => Function::Negative,
            "abs" => Function::Absolute,
            "rcp" => Function::Reciprocal,
            "sqrt" => Function::Root,
            "rsqrt" => Function::ReciprocalRoot,
            "ex2" => Function::Exp2,
            "lg2" => Function::Log2,
            _ => return Ok(None),
        };
        if double {
            return Ok(None);
        }
        self.words(line, Op::Function(function, flush), 1).map(Some)
    }

    fn conversions(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let (mut rounding, mut whole, mut saturates) = (None, false, false);
        let kinds = &line.parts[line.parts.len() - 2..];
        for part in &line.parts[1..line.parts.len() - 2] {
            let (found, to_whole) = match *part {
                "rn" => (Rounding::Nearest, false),
                "rz" => (Rounding::Zero, false),
                "rm" => (Rounding::Down, false),
                "rp" => (Rounding::Up, false),
                "rni" => (Rounding::Nearest, true),
                "rzi" => (Rounding::Zero, true),
                "rmi" => (Rounding::Down, true),
                "rpi" => (Rounding::Up, true),
                "sat" => {
                    saturates = true;
                    continue;
                }
                _ => return Ok(None),
            };
            (rounding, whole) = (Some(found), to_whole);
        }
        let pair = match kinds {
            ["bf16x2", "f32"] => Some(Factor::Bf16),
            ["f16x2", "f32"] => Some(Factor::F16),
            _ => None,
        };
        if let Some(factor) = pair {
            let plain = rounding == Some(Rounding::Nearest) && !saturates;
            let inst = self.words(line, Op::RoundPair(factor), 2)?;
            return Ok(plain.then_some(inst));
        }
        let (Some(to), Some(from)) = (type_of(kinds[0]), type_of(kinds[1])) else {
            return Ok(None);
        };
        let narrow = matches!(to, Type::F16 | Type::Bf16 | Type::F32);
        if narrow && matches!(rounding, Some(Rounding::Down | Rounding::Up | Rounding::Zero)) && !whole {
            return Ok(None);
        }
        let mut inst = plain(Op::Convert(Conversion {
            to,
            from,
            rounding: rounding.unwrap_or(Rounding::Nearest),
            whole,
            saturates,
        }));
        inst.to[0] = if is_double(to) {
            self.double_to(line, 0)?
        } else {
            self.word_to(line, 0)?
        };
        inst.from[0] = if is_double(from) {
            self.double(line, 1)?
        } else {
            self.word(line, 1)?
        };
        Ok(Some(inst))
    }

    /// Predicates, and comparisons, which make them.
    pub(super) fn predicates(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let op = match (line.parts[0], line.last()) {
            ("setp", _) if line.parts.len() == 3 => return self.comparison(line),
            ("and", "pred") => Op::Logic(Whole::And),
            ("or", "pred") => Op::Logic(Whole::Or),
            ("xor", "pred") => Op::Logic(Whole::Xor),
            ("not", "pred") => Op::NotPredicate,
            _ => return Ok(None),
        };
        let mut inst = plain(op);
        inst.to[0] = self.predicate_to(line, 0)?;
        inst.from[0] = self.predicate(line, 1)?;
        if op != Op::NotPredicate {
            inst.from[1] = self.predicate(line, 2)?;
        }
        Ok(Some(inst))
    }

    fn comparison(&mut self, line: &Line<'_, 'a>) -> Decoded {
        let Some(kind) = type_of(line.last()) else {
            return Ok(None);
        };
        let (name, unordered) = match line.parts[1] {
            "lo" => ("lt", false),
            "ls" => ("le", false),
            "hi" => ("gt", false),
            "hs" => ("ge", false),
            "num" => ("num", false),
            "nan" => ("nan", true),
            name => (&name[..2], name.len() == 3),
        };
        let (less, equal, greater) = match name {
            "eq" => (false, true, false),
            "ne" => (true, false, true),
            "lt" => (true, false, false),
            "le" => (true, true, false),
            "gt" => (false, false, true),
            "ge" => (false, true, true),
            "num" => (true, true, true),
            "nan" => (false, false, false),
            _ => return Ok(None),
        };
        let compare = Compare {
            less,
            equal,
            greater,
            unordered,
        };
        let mut inst: Inst = plain(Op::Compare(compare, kind));
        inst.to[0] = self.predicate_to(line, 0)?;
        for index in 0..2 {
            inst.from[index] = if is_double(kind) {
                self.double(line, 1 + index)?
            } else {
                self.word(line, 1 + index)?
            };
        }
        Ok(Some(inst))
    }
}
