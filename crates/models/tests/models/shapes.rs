//! The configurations in `benchmarks/configs` are those of the models that they are named after.

use paceline_device::Recorder;
use paceline_weights::Checkpoint;
use std::path::Path;

#[test]
fn the_shapes_to_measure_with_have_their_published_sizes() {
    // Parameters in millions, those of the draft head apart.
    let published = [
        ("qwen3.5-0.8b", 752, 20),
        ("qwen3.5-4b", 4_206, 121),
        ("qwen3.5-4b-fp8", 4_206, 121),
        ("qwen3.5-9b", 8_954, 243),
        ("qwen3.5-27b", 26_896, 425),
        ("qwen3.5-27b-fp8", 26_896, 425),
        ("qwen3.5-35b-a3b", 34_661, 845),
        ("qwen3.5-35b-a3b-fp8", 34_661, 845),
        ("qwen3-8b", 8_191, 0),
        ("nemotron-h-8b", 8_101, 0),
        ("granite-4.0-h-small", 32_207, 0),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/configs");
    for (name, parameters, draft_parameters) in published {
        let checkpoint = Checkpoint::config_only(&folder.join(format!("{name}.json"))).expect(name);
        let config = checkpoint.config().expect(name);
        let model = paceline_models::load_config_only(&Recorder::silent(), config).expect(name);
        let millions = |elements: u64| (elements as f64 / 1e6).round() as u64;
        assert_eq!(millions(model.stats.parameters), parameters, "{name}");
        assert_eq!(millions(model.stats.draft_parameters), draft_parameters, "{name}");
    }
    let files = std::fs::read_dir(&folder).expect("the folder is there");
    let configs = files
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|end| end == "json"));
    assert_eq!(configs.count(), published.len());
}
