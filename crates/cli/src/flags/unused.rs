//! Flags of vLLM's command lines that have nothing to switch here.

use crate::commands::serve::Unused;
use clap::Args;

const VLLM: &str = "Taken from vLLM's command lines, without effect here";

// What others need and this does not. A doc comment would replace the description of the command.
#[derive(Debug, Args)]
pub(super) struct UnusedFlags {
    /// Code of models is never run.
    #[arg(long, help_heading = VLLM)]
    trust_remote_code: bool,
    /// Steps are always captured and replayed.
    #[arg(long, help_heading = VLLM)]
    enforce_eager: bool,
    /// Use --log warn.
    #[arg(long, help_heading = VLLM)]
    disable_log_requests: bool,
    /// Numbers are not logged.
    #[arg(long, help_heading = VLLM)]
    disable_log_stats: bool,
    /// Prompts are always cut into chunks.
    #[arg(long, help_heading = VLLM)]
    enable_chunked_prefill: bool,
    /// Tools are always on offer where the model can call them.
    #[arg(long, help_heading = VLLM)]
    enable_auto_tool_choice: bool,
    /// Steps are always scheduled ahead.
    #[arg(long, help_heading = VLLM)]
    async_scheduling: bool,
    /// Prefix caching is on unless --no-prefix-caching is given.
    #[arg(long, conflicts_with = "no_prefix_caching", help_heading = VLLM)]
    enable_prefix_caching: bool,
    /// Requests that lose their place are computed again.
    #[arg(long, value_name = "GIB", help_heading = VLLM)]
    swap_space: Option<f64>,
    /// Only 1.
    #[arg(long, value_name = "N", value_parser = one_device, help_heading = VLLM)]
    tensor_parallel_size: Option<usize>,
}

impl UnusedFlags {
    /// Those that were given, with the reason why nothing is different.
    pub(super) fn list(&self) -> Vec<Unused> {
        let rows = [
            (
                self.trust_remote_code,
                "--trust-remote-code",
                "code of models is never run",
            ),
            (
                self.enforce_eager,
                "--enforce-eager",
                "capturing a step's program costs no correctness here",
            ),
            (
                self.disable_log_requests,
                "--disable-log-requests",
                "--log warn leaves out the lines of requests",
            ),
            (
                self.disable_log_stats,
                "--disable-log-stats",
                "numbers are not logged",
            ),
            (
                self.enable_chunked_prefill,
                "--enable-chunked-prefill",
                "prompts are always cut into chunks",
            ),
            (
                self.enable_auto_tool_choice,
                "--enable-auto-tool-choice",
                "tools are on offer wherever the model can call them",
            ),
            (
                self.async_scheduling,
                "--async-scheduling",
                "steps are always scheduled ahead; see --pipeline-depth",
            ),
            (
                self.enable_prefix_caching,
                "--enable-prefix-caching",
                "it is on unless --no-prefix-caching is given",
            ),
            (
                self.swap_space.is_some(),
                "--swap-space",
                "what loses its place is computed again",
            ),
            (
                self.tensor_parallel_size.is_some(),
                "--tensor-parallel-size",
                "1 is what there is",
            ),
        ];
        let given = rows.into_iter().filter(|(given, ..)| *given);
        given.map(|(_, flag, reason)| Unused { flag, reason }).collect()
    }
}

fn one_device(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        Ok(_) => Err(format!(
            "it is {text}; it must be 1: a model runs on one device here"
        )),
        Err(_) => Err(format!("`{text}` is not a count")),
    }
}
