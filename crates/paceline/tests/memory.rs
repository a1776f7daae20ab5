//! The memory plan: what is taken by default, and that what is planned is what is allocated.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

use paceline::{
    DeviceInfo, DraftVocabulary, ElementTypes, EngineConfig, EngineParts, Handle, MemoryPlan, ModelFiles,
    Outline, SpeculationConfig, SpeculationMethod, StartError, UsualLoad,
};
use paceline_device::{Backend, Pending, Recorder};
use paceline_device_cpu::{Cpu, CpuOptions, Instructions};
use paceline_device_cuda::{Cuda, CudaOptions, Gpu};
use paceline_models::CacheSizes;
use paceline_runner::{ModelProposer, RunnerConfig};
use paceline_testkit::{FIXTURES, Fixture, storyteller};
use paceline_types::DType;
use paceline_weights::Checkpoint;

const GIB: u64 = 1 << 30;

fn config() -> EngineConfig {
    EngineConfig {
        threads: 1,
        available_memory: Some(24 * GIB),
        ..EngineConfig::default()
    }
}

fn drafting(method: SpeculationMethod, drafts: usize) -> SpeculationConfig {
    SpeculationConfig {
        method,
        draft_tokens: Some(drafts),
        ..SpeculationConfig::default()
    }
}

fn planned<'a>(files: impl Into<ModelFiles<'a>>, config: &EngineConfig, device: &DeviceInfo) -> MemoryPlan {
    let outline = Outline::load(files, config, device).unwrap();
    MemoryPlan::new(outline, config, device, &|_| None).unwrap()
}

/// The plan without drafts.
fn plan(checkpoint: &Checkpoint, change: impl FnOnce(&mut EngineConfig), device: &DeviceInfo) -> MemoryPlan {
    let mut config = config();
    config.speculation.method = SpeculationMethod::Off;
    change(&mut config);
    planned(checkpoint, &config, device)
}

#[test]
fn a_device_of_its_own_is_used_up_to_a_share_of_all_that_it_has() {
    let device = DeviceInfo {
        name: "cuda:0".to_owned(),
        shares_host_memory: false,
        power_of_two_blocks: true,
        quantises: false,
        total_memory: Some(10 * GIB),
        free_memory: Some(8 * GIB),
        ..Recorder::new().info()
    };
    let plan = |change: fn(&mut EngineConfig)| {
        let change = |config: &mut EngineConfig| {
            config.available_memory = None;
            config.max_num_seqs = 256;
            change(config);
        };
        plan(&storyteller(), change, &device)
    };
    // Nine tenths of all are more than is free, and the driver needs some of that.
    assert_eq!(plan(|_| {}).budget, 8 * GIB - GIB / 2);
    let half = plan(|config| config.memory_utilization = Some(0.5));
    assert_eq!(half.budget, 5 * GIB);
    // What weights and states leave goes to blocks.
    assert!(
        half.total() <= half.budget && half.total() > half.budget / 10 * 9,
        "{half}"
    );
    let mut config = config();
    config.block_size = 24;
    let refused = Outline::load(&storyteller(), &config, &device)
        .and_then(|outline| MemoryPlan::new(outline, &config, &device, &|_| None));
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(refused, "`block-size` is 24; it must be a power of two on cuda:0");
}

#[test]
fn by_default_blocks_are_for_requests_of_a_useful_length() {
    let device = Recorder::new().info();
    let plan = |change: fn(&mut EngineConfig)| plan(&storyteller(), change, &device);
    // The context of 4096 is a useful length: 16 requests of 256 blocks.
    assert_eq!(plan(|_| {}).blocks, 16 * 256);
    assert_eq!(plan(|c| c.max_num_seqs = 3).blocks, 3 * 256);
    assert_eq!(plan(|c| c.max_model_len = Some(100)).blocks, 16 * 7);
    // A quarter of what is available bounds them.
    let little = plan(|c| c.available_memory = Some(GIB / 2));
    assert!(little.kv <= GIB / 8 && little.kv > GIB / 9, "{little}");
    // What is asked for is what counts.
    assert_eq!(plan(|c| c.num_blocks = Some(1000)).blocks, 1000);
    let given = plan(|c| c.kv_cache_memory = Some(GIB));
    assert!(given.kv <= GIB && given.kv > GIB - GIB / 100, "{given}");
    let share = plan(|c| c.memory_utilization = Some(0.9));
    assert_eq!(share.blocks, 2 * 16 * 256, "all that there can be use for");
}

#[test]
fn there_are_always_blocks_for_one_request_of_full_length() {
    let (device, llama) = (Recorder::new().info(), checkpoint("llama"));
    let small = |config: &mut EngineConfig| (config.max_num_seqs, config.max_num_batched_tokens) = (2, 4);
    let ample = plan(&llama, small, &device);
    let request = ample.kv / ample.blocks as u64 * ample.blocks_per_slot as u64;
    let needed = ample.total() - ample.kv + request;
    let available = needed * 13 / 10;
    assert!(available / 4 < request, "a quarter is not enough: {ample}");
    let tight = |config: &mut EngineConfig| {
        small(config);
        config.available_memory = Some(available);
    };
    let tight = plan(&llama, tight, &device);
    assert_eq!(tight.blocks, tight.blocks_per_slot, "{tight}");
}

#[test]
fn a_plan_follows_the_elements_of_its_device() {
    let (full, mut device) = (Recorder::new().info(), Recorder::new().info());
    device.elements = ElementTypes {
        activations: DType::BF16,
        kv: DType::BF16,
        states: DType::F32,
    };
    let plan = |device| plan(&storyteller(), |c| c.num_blocks = Some(1024), device);
    let (full, half) = (plan(&full), plan(&device));
    let ids = 1024 * 16 * 4;
    assert_eq!(2 * (half.kv - ids), full.kv - ids);
    assert!(
        half.states < full.states && 2 * half.states > full.states,
        "states stay as they are, windows do not"
    );
    assert!(half.scratch < full.scratch);
    assert!(half.to_string().contains("BF16") && !full.to_string().contains("BF16"));
    // What the device has left is what there is, unless something else is said.
    device.free_memory = Some(3 * GIB);
    let mut config = config();
    config.available_memory = None;
    let found = planned(&storyteller(), &config, &device);
    assert_eq!(found.budget, (3.0 * 0.8 * GIB as f64) as u64);
}

/// All that is measured is one test: what is allocated is counted for the whole process.
#[test]
fn what_is_planned_is_what_is_allocated() {
    let cpu = Cpu::new(CpuOptions {
        threads: 1,
        instructions: Instructions::detect(),
    });
    for name in FIXTURES {
        caches_take_what_is_planned(&cpu, name);
    }
    for name in ["granite_h", "qwen3_next", "llama"] {
        a_draft_model_takes_what_is_planned(&cpu, name);
    }
    // An engine gives its memory back when its thread has ended, which is not before the next one is measured.
    let mut engines = Vec::new();
    let all = DraftVocabulary::Auto;
    let mut measure = |files, method, draft_vocabulary| {
        let speculation = SpeculationConfig {
            method,
            draft_vocabulary,
            ..SpeculationConfig::default()
        };
        let handle = an_engine_takes_what_is_planned(&cpu, files, speculation);
        let scratch = handle.memory().scratch;
        engines.push(handle);
        scratch
    };
    let whole = measure(("storyteller", None), SpeculationMethod::Auto, all);
    measure(("qwen3_next", None), SpeculationMethod::Chain, all);
    // The head of this one has a scale, which is copied.
    let scaled = ("granite_h", Some("granite_h"));
    measure(scaled, SpeculationMethod::Draft, all);
    measure(scaled, SpeculationMethod::Draft, DraftVocabulary::First(77));
    measure(("llama", None), SpeculationMethod::Off, all);
    // A part of the output matrix is the matrix itself: what changes is the room for logits.
    let part = measure(
        ("storyteller", None),
        SpeculationMethod::Auto,
        DraftVocabulary::First(1024),
    );
    let slots = config().max_num_seqs as u64;
    assert_eq!(whole - part, slots * (4096 - 1024) * 4);
}

fn checkpoint(name: &str) -> Checkpoint {
    match name {
        "storyteller" => storyteller(),
        name => Fixture::read(name).checkpoint(),
    }
}

/// What `make` allocates, and what it makes. What was let go before is counted no more once the stream, which may be the last to
/// hold it, has come to a read.
fn taken<T>(cpu: &Cpu, make: impl FnOnce() -> T) -> (u64, T) {
    let probe = cpu.buffer::<i32>(1).unwrap();
    cpu.read(&probe, 1).wait().unwrap();
    let before = cpu.allocated();
    let made = make();
    (cpu.allocated() - before, made)
}

fn caches_take_what_is_planned(cpu: &Cpu, name: &str) {
    let checkpoint = checkpoint(name);
    let model = paceline_models::load(cpu, &checkpoint, None, &|_| {}).unwrap();
    for drafts in [0, 3, 7] {
        let config = EngineConfig {
            num_blocks: Some(40),
            max_model_len: Some(100),
            speculation: drafting(SpeculationMethod::Ngram, drafts),
            ..config()
        };
        let plan = planned(&checkpoint, &config, &cpu.info());
        let sizes = CacheSizes {
            blocks: plan.blocks,
            block_size: plan.block_size,
            slots: plan.slots,
            drafts,
            snapshots: plan.snapshot_count,
        };
        let (bytes, _caches) = taken(cpu, || model.caches(cpu, &sizes).unwrap());
        let ids = (plan.blocks * plan.block_size * 4) as u64;
        let planned = plan.kv - ids + plan.states + plan.rings + plan.snapshots;
        assert_eq!(bytes, planned, "{name}, {drafts} drafts:\n{plan}");
    }
}

/// Its rings hold the window that is verified and the drafts that it is making.
fn a_draft_model_takes_what_is_planned(cpu: &Cpu, name: &str) {
    let checkpoint = checkpoint(name);
    let load = || paceline_models::load(cpu, &checkpoint, None, &|_| {}).unwrap();
    let model = load();
    let measure = |drafts: usize| {
        let config = EngineConfig {
            num_blocks: Some(40),
            max_model_len: Some(100),
            snapshot_share: 0.0001,
            speculation: drafting(SpeculationMethod::Draft, drafts),
            ..config()
        };
        let files = ModelFiles {
            model: &checkpoint,
            drafter: Some(&checkpoint),
        };
        let both = planned(files, &config, &cpu.info());
        let runner = RunnerConfig {
            slots: both.slots,
            tokens: 64,
            samples: 64,
            blocks: both.blocks,
            blocks_per_slot: both.blocks_per_slot,
            block_size: both.block_size,
            snapshots: both.snapshot_count,
            drafts,
            masks: 0,
            depth: 2,
        };
        let (own, _) = taken(cpu, || {
            let sizes = CacheSizes {
                blocks: both.blocks,
                block_size: both.block_size,
                slots: both.slots,
                drafts,
                snapshots: both.snapshot_count,
            };
            model.caches(cpu, &sizes).unwrap()
        });
        let drafter = load();
        let (drafters, _proposer) = taken(cpu, || ModelProposer::new(cpu, drafter, &runner).unwrap());
        let planned = both.kv + both.states + both.rings + both.snapshots;
        (own + drafters, planned)
    };
    let (few, many) = (measure(3), measure(7));
    assert!(few.0 > few.1 - 40 * 16 * 4 && many.0 > few.0 - 1, "{name}");
    // Between two numbers of drafts nothing but rings is different, to the byte; tables of passes aside, which are in
    // both.
    assert_eq!(many.0 - few.0, many.1 - few.1, "{name}");
}

fn an_engine_takes_what_is_planned(
    cpu: &Cpu,
    (name, drafter): (&str, Option<&str>),
    speculation: SpeculationConfig,
) -> Handle {
    let (model, drafter) = (checkpoint(name), drafter.map(checkpoint));
    let config = EngineConfig {
        speculation,
        ..config()
    };
    let files = ModelFiles {
        model: &model,
        drafter: drafter.as_ref(),
    };
    let parts = EngineParts::load(cpu.clone(), files, config, &|_| {}).unwrap();
    let (bytes, handle) = taken(cpu, || parts.start_around(|runner| runner).unwrap());
    let plan = *handle.memory();
    let caches = plan.kv + plan.states + plan.rings + plan.snapshots + plan.ngram_index;
    println!(
        "{name} {}: {bytes} bytes taken, {caches} + {} planned",
        handle.speculation(),
        plan.scratch
    );
    assert_eq!(bytes, caches + plan.scratch, "{name}\n{plan}");
    handle
}

/// A GPU that nobody has to have: what is asked of it is counted as if it were there.
fn gpu(memory: u64) -> Cuda {
    let gpu = Gpu {
        ordinal: 0,
        name: "NVIDIA H200".to_owned(),
        capability: (9, 0),
        memory,
        multiprocessors: 132,
    };
    Cuda::rehearse(gpu, CudaOptions::default()).unwrap()
}

/// Starts an engine on it, and returns what the plan says.
fn started_on(cuda: &Cuda, checkpoint: &Checkpoint, config: EngineConfig) -> Result<MemoryPlan, StartError> {
    let parts = EngineParts::load(cuda.clone(), checkpoint, config, &|_| {})?;
    let handle = parts.start_around(|runner| runner)?;
    let plan = *handle.memory();
    let (taken, planned) = (cuda.allocated(), plan.total());
    // A model that is smaller than a chunk of memory is planned as if its caches were not in what is left of it.
    assert!(
        taken == planned || taken < planned && planned < taken + (32 << 20) && taken < (256 << 20),
        "{taken} bytes taken\n{plan}"
    );
    Ok(plan)
}

fn shape(name: &str) -> Checkpoint {
    let path = paceline_testkit::repository()
        .join("benchmarks/configs")
        .join(name);
    Checkpoint::config_only(&path).unwrap()
}

/// Scratch of operations, weights in the device's own types, what is lost to pages: all of it is in the plan, and all of the
/// plan is taken.
#[test]
fn a_gpu_takes_what_is_planned_to_the_byte() {
    for name in FIXTURES {
        started_on(&gpu(16 * GIB), &Fixture::read(name).checkpoint(), config()).unwrap();
    }
    let full = EngineConfig {
        random_weights: true,
        max_num_seqs: 256,
        max_num_batched_tokens: 8192,
        max_model_len: Some(8192),
        ..EngineConfig::default()
    };
    for name in [
        "qwen3.5-4b.json",
        "qwen3-8b.json",
        "qwen3.5-35b-a3b.json",
        "nemotron-h-8b.json",
    ] {
        let plan = started_on(&gpu(140 * GIB), &shape(name), full.clone()).unwrap();
        println!("{name}\n{plan}");
        assert!(plan.scratch > GIB, "{name}: scratch of 8192 tokens\n{plan}");
        // As vLLM counts: a share of all that the card has, and the rest of that are blocks.
        let share = (140.0 * 0.9 * GIB as f64) as u64;
        assert!(
            plan.total() <= plan.budget && plan.budget <= share,
            "{name}\n{plan}"
        );
        let useful = plan.blocks >= 2 * plan.slots * plan.blocks_per_slot;
        assert!(useful || plan.total() > plan.budget - GIB, "{name}\n{plan}");
    }
}

#[test]
fn what_is_too_much_for_a_gpu_is_a_sentence_or_less_at_a_time() {
    let tight = EngineConfig {
        random_weights: true,
        max_num_seqs: 256,
        max_num_batched_tokens: 8192,
        max_model_len: Some(8192),
        ..EngineConfig::default()
    };
    let model = shape("qwen3.5-4b.json");
    let refused = started_on(&gpu(16 * GIB), &model, tight.clone())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("may be used; weights take") && refused.contains("--max-num-seqs"),
        "{refused}"
    );
    let lower = EngineConfig {
        lowest: Some(UsualLoad::SMALL),
        ..tight.clone()
    };
    let plan = started_on(&gpu(16 * GIB), &model, lower.clone()).unwrap();
    assert!((16..256).contains(&plan.slots), "{plan}");
    let refused = started_on(&gpu(8 * GIB), &model, lower).unwrap_err().to_string();
    assert!(refused.contains("may be used; weights take"), "{refused}");
}
