//! Kernels as the interpreter runs them: instructions with their registers numbered and their targets resolved.

use std::sync::Arc;

/// No register.
pub(crate) const NONE: u32 = u32::MAX;

/// Arithmetic of two whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Add,
    Sub,
    Mul,
    MulHighSigned,
    MulHigh,
    DivSigned,
    Div,
    RemSigned,
    Rem,
    MinSigned,
    Min,
    MaxSigned,
    Max,
    And,
    Or,
    Xor,
    Left,
    RightSigned,
    Right,
}

/// Functions of one whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    Not,
    Negative,
    Absolute,
    Ones,
    LeadingZeros,
    Reversed,
    /// The place of the highest bit that is set.
    Highest,
    /// How far it can be shifted up before that one falls out.
    ShiftToHighest,
}

/// Arithmetic of two floating numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    Add,
    AddToZero,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

/// Functions of one floating number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Negative,
    Absolute,
    Reciprocal,
    Root,
    ReciprocalRoot,
    Exp2,
    Log2,
}

/// How two numbers compare. `Unordered` ones are true of what is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a way in which numbers can compare"
)]
pub(crate) struct Compare {
    pub(crate) less: bool,
    pub(crate) equal: bool,
    pub(crate) greater: bool,
    pub(crate) unordered: bool,
}

/// Types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

/// How a conversion rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// From a type to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) rounding: Rounding,
    /// To a whole number, also if it stays a floating one.
    pub(crate) whole: bool,
    pub(crate) saturates: bool,
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    Parameter,
    /// The address itself says.
    Generic,
}

/// A load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Of an element.
    pub(crate) bytes: u8,
    pub(crate) count: u8,
    pub(crate) signed: bool,
    /// Elements are in registers of 64 bits.
    pub(crate) double: bool,
    /// The address is in one.
    pub(crate) far: bool,
}

/// What becomes of a place in memory in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    AddFloat,
    And,
    Or,
    Xor,
    Min,
    MinSigned,
    Max,
    MaxSigned,
    Exchange,
    CompareExchange,
}

/// Which lane's value a lane gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Index,
    Up,
    Down,
    Butterfly,
}

/// What is asked of the predicates of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    Ballot,
    Any,
    All,
    Uniform,
}

/// What all lanes of a warp, or all threads of a block, are made one by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Min,
    MinSigned,
    Max,
    MaxSigned,
    Add,
    And,
    Or,
    Xor,
    /// How many predicates hold.
    Count,
}

/// Types of the factors of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    Bf16,
    F16,
    Tf32,
}

/// A product of a warpgroup: 64 rows, so many columns, 16 deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide {
    pub(crate) columns: u16,
    pub(crate) factor: Factor,
    /// The left factor is in registers.
    pub(crate) held: bool,
    /// The right factor is kept by rows of the depth.
    pub(crate) by_rows: bool,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Nothing,
    MoveWord,
    MoveDouble,
    MovePredicate,
    /// Two words to a double, and back.
    JoinWords,
    SplitDouble,
    /// Two halves to a word, and back.
    JoinHalves,
    SplitWord,
    Clock,
    /// `true`: of sixteen bits.
    Whole(Whole, bool),
    WholeDouble(Whole),
    MulWide {
        signed: bool,
        half: bool,
    },
    MulAdd,
    MulAddWide {
        signed: bool,
    },
    MulAddDouble,
    Bits(Bits, bool),
    BitsDouble(Bits),
    /// Of a double, to a word.
    CountDouble(Bits),
    Lop3,
    Permute,
    Extract {
        signed: bool,
    },
    Insert,
    InsertDouble,
    Funnel {
        left: bool,
        wraps: bool,
    },
    Logic(Whole),
    NotPredicate,
    Compare(Compare, Type),
    SelectWord,
    SelectDouble,
    Float(Float, bool),
    FloatDouble(Float),
    Fma {
        down: bool,
        flush: bool,
    },
    FmaDouble,
    FmaBf16x2,
    Function(Function, bool),
    Convert(Conversion),
    /// Two floats to a word of two halves.
    RoundPair(Factor),
    Load(Access),
    Store(Access),
    /// Addresses of one space as addresses of any, and back.
    ToGeneric(Space),
    FromGeneric,
    Change {
        change: Change,
        space: Space,
        double: bool,
        far: bool,
    },
    Shuffle(Shuffle),
    Vote(Vote),
    Match,
    Fold(Fold),
    ActiveMask,
    MeetWarp,
    Branch,
    Exit,
    Trap,
    Meet {
        fold: Option<Fold>,
    },
    Announce,
    ClusterArrive,
    ClusterWait,
    PlaceOf,
    BarrierInit,
    BarrierExpect,
    BarrierArrive,
    /// `true`: it waits.
    BarrierWait(bool),
    Copy,
    CopyCommit,
    CopyWait,
    CopyArrive,
    BulkLoad,
    BulkStore,
    BulkCommit,
    BulkWait {
        read: bool,
    },
    LoadMatrix {
        count: u8,
        transposed: bool,
    },
    Multiply(Factor),
    MultiplyWide(Wide),
    MultiplyCommit,
    MultiplyWait,
}

/// An instruction. Registers are numbers of rows in the file of their class, which the operation implies; constants are rows
/// behind the registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// Its predicate, or [`NONE`].
    pub(crate) guard: u32,
    /// The predicate has to be false.
    pub(crate) negated: bool,
    /// What it writes.
    pub(crate) to: [u32; 2],
    /// What it reads.
    pub(crate) from: [u32; 4],
    /// A number that is part of it: an offset, a count, the target of a branch.
    pub(crate) number: i64,
    /// More registers in [`Kernel::lists`]: the first, how many are written, how many there are.
    pub(crate) list: (u32, u16, u16),
    pub(crate) line: u32,
}

/// A register that is there from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Lane,
    Warp,
    RankInCluster,
    BlocksOfCluster,
}

/// How many rows of registers there are of each class, and which are constants.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) predicates: usize,
    pub(crate) words: usize,
    pub(crate) doubles: usize,
    /// Rows of words behind `words`.
    pub(crate) word_constants: Vec<u32>,
    /// Rows of words behind those.
    pub(crate) specials: Vec<Special>,
    /// Rows of doubles behind `doubles`.
    pub(crate) double_constants: Vec<u64>,
}

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    pub(crate) lists: Vec<u32>,
    pub(crate) rows: Rows,
    /// Bytes of parameters, and each one's place and size.
    pub(crate) parameters: Vec<(usize, usize)>,
    /// The first byte of shared memory behind its own variables, aligned for what the launch adds.
    pub(crate) shared_end: usize,
    /// Bytes per lane.
    pub(crate) local: usize,
    /// The module's text, for messages.
    pub(crate) text: Arc<str>,
}

impl Kernel {
    /// The text of an instruction's line.
    pub(crate) fn line(&self, line: u32) -> &str {
        let text = self.text.lines().nth(line.saturating_sub(1) as usize);
        text.unwrap_or_default().trim()
    }
}
