//! A model of this machine answers.

use super::answer::{Answer, AnswerFigures, Part, Question};
use crate::engine::{self, Demand, EngineOptions, explain_request};
use crate::format;
use crate::interrupt::Interrupt;
use crate::model::{LoadedModel, ModelSource};
use crate::ui::Ui;
use anyhow::{Context, Result, anyhow, bail};
use paceline::{Event, Finish, Generation, Handle, Request, Usage};
use paceline_text::{
    ChatInput, ChatTemplate, OutputParser, OutputParserOptions, OutputPart, Piece, ReasoningFormat,
    TextDecoder, Tokenizer,
};
use paceline_types::{FinishReason, TokenId};
use std::time::{Duration, Instant};

/// How soon Ctrl-C is noticed when no tokens come.
const PATIENCE: Duration = Duration::from_millis(50);
/// Share of the context that is kept free for an answer whose length is open.
const ROOM: usize = 8;

/// The model and its engine.
pub(super) struct Local {
    model: LoadedModel,
    embedded: bool,
    parameters: u64,
    engine: Handle,
    /// Absent: texts are continued.
    template: Option<ChatTemplate>,
    reasoning: Option<ReasoningFormat>,
    /// The model has a template, and the user does not want it.
    plain: bool,
}

/// A conversation as tokens.
struct Prompt {
    tokens: Vec<TokenId>,
    inside_reasoning: bool,
    left_out: usize,
}

impl Local {
    /// Loads the model and starts its engine, for one conversation.
    pub(super) fn open(source: &ModelSource, options: &EngineOptions, plain: bool, ui: Ui) -> Result<Self> {
        let model = LoadedModel::open(source, ui)?;
        model
            .tokenizer
            .as_ref()
            .with_context(|| format!("{}: the model has no tokenizer (tokenizer.json)", model.source))?;
        let template = if plain {
            None
        } else {
            model
                .template()
                .context("the chat template is damaged; --plain continues texts without it")?
        };
        let sources: Vec<&str> = model.template_sources().collect();
        let reasoning = ReasoningFormat::detect(&sources.join("\n")).filter(|_| template.is_some());
        let outline = engine::outline(&model)?;
        let demand = Demand {
            sequences: 1,
            choices: 1,
            longest: usize::MAX,
        };
        let engine = options.start((&model, &outline), demand, ui)?;
        Ok(Self {
            embedded: *source == ModelSource::Embedded,
            parameters: outline.stats.parameters,
            model,
            engine,
            template,
            reasoning,
            plain,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.model.source
    }

    pub(super) fn continues(&self) -> bool {
        self.template.is_none()
    }

    pub(super) fn introduction(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{}: {} parameters, a context of {} tokens, speculation {}",
            self.model.source,
            format::count(self.parameters),
            format::grouped(self.engine.max_model_len() as u64),
            self.engine.speculation()
        )];
        lines.push(format!("sampling: {}; /set changes it", self.model.defaults()));
        match (&self.template, self.plain) {
            (Some(_), _) => {}
            (None, true) => lines.push("It continues your text.".to_owned()),
            (None, false) => {
                lines.push(
                    "The model has no chat template: it continues your text instead of answering.".to_owned(),
                );
            }
        }
        if self.embedded {
            lines.push(
                "It is small and tells children's stories; it is no assistant. Try: Tell me about a fox."
                    .to_owned(),
            );
        }
        lines
    }

    /// Answers; see [`Speaker`](super::Speaker).
    pub(super) fn answer(
        &self,
        question: &Question<'_>,
        interrupt: &Interrupt,
        show: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<Answer> {
        let tokenizer = self.model.require_tokenizer("a conversation")?;
        let prompt = self.prompt(question, tokenizer)?;
        let mut neutral = Request {
            prompt: prompt.tokens.into(),
            ..Request::default()
        };
        neutral.sampling_mut().seed = question.seed;
        neutral.sampling_mut().max_tokens = self.engine.max_model_len();
        let (request, decoding) = question
            .settings
            .request(&self.model, neutral, self.continues())?;
        let hits = || self.engine.stats().counters.prefix_hits;
        let before = hits();
        let generation = self.engine.generate(request);
        let generation = generation.map_err(|error| explain_request(error, false))?;
        let mut text = AnswerText {
            decoder: TextDecoder::new(Some(tokenizer), decoding),
            parser: OutputParser::new(&OutputParserOptions {
                reasoning: self.reasoning,
                inside_reasoning: prompt.inside_reasoning,
                ..OutputParserOptions::default()
            }),
            text: String::new(),
        };
        let finish = self.follow(generation, &mut text, interrupt, show)?;
        for part in text.finish() {
            show(part)?;
        }
        let end = if text.stopped() {
            FinishReason::Stop
        } else {
            finish.reason
        };
        let mut figures = figures(&finish.usage);
        // This engine has no other clients, so what it found meanwhile it found for this prompt.
        figures.cached_tokens = Some(hits() - before);
        Ok(Answer {
            text: text.text,
            end: end.name().to_owned(),
            figures,
            left_out: prompt.left_out,
        })
    }

    /// Reads a generation to its end.
    fn follow(
        &self,
        generation: Generation,
        text: &mut AnswerText,
        interrupt: &Interrupt,
        show: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<Finish> {
        let mut streams = paceline::Streams::default();
        streams.add(generation);
        loop {
            if interrupt.requested() {
                streams.cancel_all();
            }
            let Some((_, event)) = streams.next(Instant::now() + PATIENCE) else {
                continue;
            };
            match event {
                Some(Event::Delta { output, .. }) => {
                    for part in text.push(output.ids) {
                        show(part)?;
                    }
                    if text.stopped() {
                        streams.cancel_all();
                    }
                }
                Some(Event::Finished { finish, .. }) => return Ok(finish),
                Some(Event::Failed(failure)) => bail!(failure),
                Some(Event::Prompt { .. }) => {}
                None => {
                    let fault = self.engine.fault();
                    bail!(
                        "the engine has stopped: {}",
                        fault.unwrap_or_else(|| "no reason given".to_owned())
                    );
                }
            }
        }
    }

    /// The conversation as tokens; its oldest exchanges are left out if they leave no room for an answer.
    fn prompt(&self, question: &Question<'_>, tokenizer: &Tokenizer) -> Result<Prompt> {
        let limit = self.engine.max_model_len();
        let wanted = question.settings.options.integer("max_tokens");
        let wanted = wanted
            .and_then(|wanted| usize::try_from(wanted).ok())
            .unwrap_or(limit);
        let room = wanted.min(limit / ROOM).max(1);
        let mut left_out = 0;
        loop {
            let (tokens, inside_reasoning) = self.encode(question, left_out, tokenizer)?;
            if tokens.is_empty() {
                bail!("there is nothing to continue; type something first");
            }
            if tokens.len() + room <= limit {
                return Ok(Prompt {
                    tokens,
                    inside_reasoning,
                    left_out,
                });
            }
            match question.conversation.oldest_exchange(left_out) {
                0 if tokens.len() < limit => {
                    return Ok(Prompt {
                        tokens,
                        inside_reasoning,
                        left_out,
                    });
                }
                0 => {
                    return Err(anyhow!(
                        "the message has {} tokens; the context holds {limit}, one of which must be left for the answer",
                        tokens.len()
                    ));
                }
                messages => left_out += messages,
            }
        }
    }

    fn encode(
        &self,
        question: &Question<'_>,
        left_out: usize,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<TokenId>, bool)> {
        let Some(template) = &self.template else {
            let text = question.conversation.to_text(left_out);
            return Ok((tokenizer.encode(&text, true)?, false));
        };
        let input = ChatInput {
            messages: question.conversation.to_json(left_out),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        let text = template.render(&input).context("chat template")?;
        let inside = self.reasoning.is_some_and(|format| format.starts_inside(&text));
        // The template writes the special tokens itself.
        Ok((tokenizer.encode(&text, false)?, inside))
    }
}

fn figures(usage: &Usage) -> AnswerFigures {
    let drafts = &usage.speculation;
    AnswerFigures {
        prompt_tokens: usage.prompt_tokens as u64,
        cached_tokens: None,
        tokens: usage.completion_tokens as u64,
        first: usage.first_token,
        total: usage.total,
        steps: drafts.steps,
        step_tokens: drafts.tokens as f64,
        drafted: drafts.drafted,
        accepted: drafts.accepted,
    }
}

/// From tokens to what is shown, and what of it is reasoning.
struct AnswerText {
    decoder: TextDecoder,
    parser: OutputParser,
    /// The answer without its reasoning.
    text: String,
}

impl AnswerText {
    /// Whether a stop string has ended it.
    fn stopped(&self) -> bool {
        self.decoder.stopped().is_some()
    }

    fn push(&mut self, tokens: Vec<TokenId>) -> Vec<Part> {
        let piece = self.decoder.push_all(tokens, Vec::new());
        self.read(&piece)
    }

    fn read(&mut self, piece: &Piece) -> Vec<Part> {
        let parts = self.parser.push(&piece.text);
        self.keep(parts)
    }

    /// What was held back.
    fn finish(&mut self) -> Vec<Part> {
        let rest = self.decoder.finish();
        let mut parts = self.read(&rest);
        let read = self.parser.finish();
        parts.extend(self.keep(read));
        parts
    }

    fn keep(&mut self, parts: Vec<OutputPart>) -> Vec<Part> {
        let kept = parts.into_iter().filter_map(|part| match part {
            OutputPart::Content(text) => {
                self.text.push_str(&text);
                Some(Part::Text(text))
            }
            OutputPart::Reasoning(text) => Some(Part::Reasoning(text)),
            // No tools are offered, so calls are text.
            OutputPart::ToolCallStart { .. }
            | OutputPart::ToolCallArguments { .. }
            | OutputPart::ToolCallEnd { .. } => None,
        });
        kept.collect()
    }
}
