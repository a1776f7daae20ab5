//! The interpreter against arithmetic of the host, and what it must find wrong.

mod asynchronous;
mod numbers;
mod threads;

use crate::decode;
use crate::exec::Trouble;
use crate::grid::{Fault, Shape, run};
use crate::memory::Memory;
use crate::parser::parse;
use crate::settings::{Settings, Timing};
use std::collections::HashMap;

/// A kernel of a few lines. `%in` and `%out` are addresses of words, `%t` is the thread, and `%a`, `%b`, `%c` are words that were
/// read for it.
struct Snippet {
    text: String,
    shape: Shape,
    settings: Settings,
    seed: u64,
}

const HEAD: &str = ".version 9.4
.target sm_90a
.address_size 64
";
const REGISTERS: &str = "
.reg .pred %p<20>; .reg .b16 %h<20>; .reg .f32 %f<40>; .reg .b32 %r<90>; .reg .b64 %d<40>;
.reg .b32 %t, %a, %b, %c; .reg .b64 %in, %out, %at;
ld.param.u64 %in, [inputs]; ld.param.u64 %out, [outputs];
mov.u32 %t, %tid.x; mul.wide.u32 %d0, %t, 16; add.s64 %d0, %in, %d0;
ld.global.u32 %a, [%d0]; ld.global.u32 %b, [%d0+4]; ld.global.u32 %c, [%d0+8];
mul.wide.u32 %d1, %t, 8; add.s64 %at, %out, %d1;
";

impl Snippet {
    /// For one block of so many threads, with so many bytes of shared memory at `shared`.
    fn new(threads: u32, body: &str) -> Self {
        let entry = ".visible .entry snippet(.param .u64 inputs, .param .u64 outputs)";
        Self {
            text: format!(
                "{HEAD}.extern .shared .align 1024 .b8 shared[];\n{entry} {{{REGISTERS}{body}\nret;\n}}\n"
            ),
            shape: Shape {
                blocks: [1, 1, 1],
                threads,
                cluster: 1,
                shared: 32 << 10,
            },
            settings: Settings {
                limit: 1 << 22,
                ..Settings::default()
            },
            seed: 1,
        }
    }

    fn seeded(mut self, seed: u64, timing: Timing) -> Self {
        self.seed = seed;
        self.settings.timing = timing;
        self
    }

    /// Runs it on these words, four per thread, and returns two words per thread of the grid.
    fn run(&self, inputs: &[u32]) -> Result<Vec<u32>, Fault> {
        let module = parse(&self.text).unwrap();
        let text = self.text.as_str().into();
        let kernel = decode::kernel(&module, &module.entries[0], &HashMap::new(), &text).unwrap();
        let mut memory = Memory::default();
        let threads = (self.shape.threads * self.shape.blocks.iter().product::<u32>()) as usize;
        let (from, to) = (
            memory.take(16 * threads, false).unwrap(),
            memory.take(8 * threads, false).unwrap(),
        );
        let bytes: Vec<u8> = inputs.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(from, &bytes).unwrap();
        let parameters = [from.to_le_bytes(), to.to_le_bytes()].concat();
        run(
            &kernel,
            &self.shape,
            &parameters,
            &memory,
            &self.settings,
            self.seed,
        )?;
        let mut found = vec![0; 8 * threads];
        memory.read(to, &mut found).unwrap();
        Ok(found
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect())
    }

    /// What goes wrong with it.
    fn fault(&self) -> (Trouble, String) {
        self.fault_of(&[])
    }

    fn fault_of(&self, inputs: &[u32]) -> (Trouble, String) {
        let fault = self.run(inputs).unwrap_err();
        (fault.trouble, fault.text)
    }
}

/// Words at random, among them those where arithmetic is special.
fn words(count: usize, seed: u64) -> Vec<u32> {
    const SPECIAL: [u32; 12] = [
        0,
        1,
        31,
        32,
        33,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x3f80_0000,
        0x7f80_0000,
        0x7fc0_0000,
        0x0000_8001,
    ];
    let mut random = crate::settings::Random::new(seed);
    let word = |_| match random.below(3) {
        0 => SPECIAL[random.below(12) as usize],
        _ => random.next() as u32,
    };
    (0..count).map(word).collect()
}

#[test]
fn what_is_not_known_is_an_error_that_names_the_line() {
    for (body, part) in [
        (
            "tanh.approx.f32 %f0, %f1;",
            "tanh.approx.f32: the emulator does not have it",
        ),
        ("add.s32 %r0, %r1, %q7;", "%q7"),
        ("mov.u32 %r0, %gridid;", "%gridid"),
        ("bra nowhere;", "no label nowhere"),
        ("add.s32 %r0, %d1, %r2;", "%d1"),
    ] {
        let snippet = Snippet::new(32, body);
        let module = parse(&snippet.text).unwrap();
        let text = snippet.text.as_str().into();
        let error = decode::kernel(&module, &module.entries[0], &HashMap::new(), &text).unwrap_err();
        assert!(
            error.contains(part) && error.contains("kernel snippet, line "),
            "{error}"
        );
    }
    assert!(parse(".version 9.4 .target sm_90a .surface x;").is_err());
}
