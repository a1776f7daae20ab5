//! The callers: requests arrive, are cancelled, stopped and forgotten, and every delivery is checked against
//! the text it must be part of.

use super::device::{Device, Scripts, VirtualClock};
use super::grammar::{Grammar, Shared, Slow};
use super::rng::Rng;
use super::scenario::{Policy, Scenario};
use super::text::{Limits, Script, VOCABULARY};
use paceline_schedule::{
    CheckedRequest, Choice, DepthControl, DraftPolicy, FixedDrafts, GroupId, Pipeline, RequestId,
    RequestOutput, RequestView, Scheduler, StepRecord, Stepped,
};
use paceline_types::{DraftBudget, FinishReason, Pooling, SamplingParams, TokenId};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A request as its caller knows it.
struct Caller {
    script: Rc<Script>,
    params: Arc<SamplingParams>,
    priority: i32,
    tenant: u32,
    /// May start behind those that arrived later: it waits for a group, or for a mask.
    apart: bool,
    pooling: Option<Pooling>,
    started: bool,
    deadline: Option<u64>,
    delivered: usize,
    scored: usize,
    /// The ending that the caller asked for.
    asked: Option<FinishReason>,
}

pub struct World {
    pub scenario: Scenario,
    pub pipeline: Pipeline<Device, VirtualClock>,
    clock: VirtualClock,
    scripts: Scripts,
    rng: Rng,
    alive: BTreeMap<u64, Caller>,
    /// Texts of late, to continue.
    texts: Vec<Vec<TokenId>>,
    names: u64,
    /// The first in order of service, and the steps since it last got on.
    first: Option<(i32, u64)>,
    /// By priority and tenant: the latest arrival that has been admitted, and how many admissions were looked at.
    latest: BTreeMap<(i32, u32), u64>,
    seen: usize,
    stalled: u64,
    pub tally: Tally,
}

/// A number of drafts that changes from row to row, and asks for more than there may be.
struct AnyDrafts;

impl DraftPolicy for AnyDrafts {
    fn choose(&mut self, request: &RequestView) -> Choice {
        let dice = request.known * 5 + request.id.0 as usize;
        Choice {
            verify: dice % (request.ready + 3),
            propose: DraftBudget {
                ngram: dice / 3 % (request.most.ngram + 3),
                neural: dice / 7 % (request.most.neural + 3),
            },
        }
    }
}

/// What came up, to be sure that it did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub steps: u64,
    pub tokens: u64,
    pub finished: [u64; 5],
    pub vectors: u64,
    pub completed: u64,
    pub rejected: u64,
    pub bubbles: u64,
}

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let (clock, scripts) = (VirtualClock::default(), Scripts::default());
        let (config, depth, seed) = (&scenario.config, scenario.depth, scenario.seed);
        let device = Device::new(config, depth, clock.clone(), scripts.clone(), seed ^ 0xde);
        let policy: Box<dyn DraftPolicy> = match scenario.policy {
            Policy::Fixed => Box::new(FixedDrafts::any(config.drafts)),
            Policy::Any => Box::new(AnyDrafts),
            Policy::Controlled => Box::new(DepthControl::new()),
        };
        let scheduler = Scheduler::with_policy(config.clone(), policy);
        let mut pipeline = Pipeline::new(scheduler, device, clock.clone(), depth);
        // Half of the cases compute masks between steps.
        if seed % 2 == 0 {
            pipeline = pipeline.with_mask_workers(Box::new(Slow::new(seed ^ 0x51)));
        }
        Self {
            pipeline,
            clock,
            scripts,
            rng: Rng::new(seed ^ 0x30),
            alive: BTreeMap::new(),
            texts: Vec::new(),
            names: 0,
            first: None,
            latest: BTreeMap::new(),
            seen: 0,
            stalled: 0,
            tally: Tally::default(),
            scenario,
        }
    }

    /// Runs the whole case: arrivals for the given number of steps, then until everyone is served.
    pub fn run(&mut self) {
        let mut turns = 0;
        while self.tally.steps < self.scenario.steps && turns < 20 * self.scenario.steps {
            turns += 1;
            self.callers_act();
            self.turn();
            if turns % 64 == 0 {
                self.pipeline.scheduler().check_integrity();
            }
        }
        self.drain();
    }

    /// No more arrivals: all must end, and everything must come back.
    pub fn drain(&mut self) {
        let mut turns = 0;
        while !self.pipeline.is_idle() {
            self.turn();
            turns += 1;
            assert!(turns < 200_000, "{} requests never end", self.alive.len());
        }
        assert!(
            self.alive.is_empty(),
            "{} requests got no ending",
            self.alive.len()
        );
        self.pipeline.scheduler().check_integrity();
        assert!(self.pipeline.step().expect("a step").is_idle());
    }

    fn callers_act(&mut self) {
        if self.rng.chance(self.scenario.arrivals) {
            self.arrive();
        }
        if self.rng.chance(self.scenario.cancels) {
            self.end_somebody(FinishReason::Cancelled);
        }
        if self.rng.chance(self.scenario.stops) {
            self.end_somebody(FinishReason::Stop);
        }
        if self.rng.chance(self.scenario.pauses) {
            let pause = self.rng.below(50_000) as u64;
            self.clock.advance(pause);
        }
    }

    fn end_somebody(&mut self, finish: FinishReason) {
        let Some(index) = (!self.alive.is_empty()).then(|| self.rng.below(self.alive.len())) else {
            return;
        };
        let Some((&name, caller)) = self.alive.iter_mut().nth(index) else {
            return;
        };
        let scheduler = self.pipeline.scheduler_mut();
        let id = RequestId(name);
        let known = if finish == FinishReason::Stop {
            scheduler.stop(id)
        } else {
            scheduler.cancel(id)
        };
        // Its ending may be waiting for delivery already.
        assert!(known || caller.asked.is_some(), "request {name} vanished");
        caller.asked.get_or_insert(finish);
    }

    /// Cancels a request.
    pub fn cancel(&mut self, id: RequestId) {
        assert!(self.pipeline.scheduler_mut().cancel(id));
        self.alive.get_mut(&id.0).expect("alive").asked = Some(FinishReason::Cancelled);
    }

    /// A text that is to become a vector.
    fn arrive_to_embed(&mut self, prompt: &[TokenId]) {
        let salt = self.rng.below(2) as u64;
        let shares = self.scenario.config.prefix_caching;
        let limits = Limits {
            circle: if shares { salt } else { 1_000 + self.names },
            speculation: DraftBudget::NONE,
            ..Limits::length(prompt.len())
        };
        let deadline = self.rng.chance(self.scenario.deadlines);
        let deadline = deadline.then(|| self.clock.peek() + self.rng.below(2_000_000) as u64);
        let pooling = self.rng.pick(&[Pooling::Mean, Pooling::Last]);
        let priority = if self.rng.chance(self.scenario.priorities) {
            self.rng.within(0, 2) as i32 - 1
        } else {
            0
        };
        let tenant = self.tenant();
        self.add(prompt, limits, priority, |new, _| {
            new.tenant = tenant;
            new.salt = salt;
            new.deadline = deadline;
            new.pooling = Some(pooling);
        });
    }

    /// Whose the next request is.
    fn tenant(&self) -> u32 {
        let dice = self.names.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (dice % u64::from(self.scenario.tenants)) as u32
    }

    /// Confines a text to what it is going to be, perhaps up to a point before its end.
    fn confine(&mut self, prompt: &[TokenId], limits: &Limits) -> Option<Arc<Grammar>> {
        if !self.rng.chance(self.scenario.confined) {
            return None;
        }
        let tokens = Script::new(prompt, limits).tokens;
        Some(Arc::new(Grammar {
            prompt_len: prompt.len(),
            seed: self.rng.next(),
            last: prompt.len() + self.rng.below(2 * (tokens.len() - prompt.len())),
            dead_end: self.rng.chance(30),
            tokens,
        }))
    }

    fn arrive(&mut self) {
        let prompt = self.prompt();
        if self.rng.chance(self.scenario.embeds) {
            return self.arrive_to_embed(&prompt);
        }
        let members = if self.rng.chance(self.scenario.groups) {
            self.rng.within(2, 4)
        } else {
            1
        };
        let group = (members > 1).then_some(GroupId(self.names));
        let priority = if self.rng.chance(self.scenario.priorities) {
            self.rng.within(0, 2) as i32 - 1
        } else {
            0
        };
        let logprobs = self.rng.chance(self.scenario.scores).then_some(2);
        let salt = self.rng.below(2) as u64;
        let tenant = self.tenant();
        // Without prefix caching nobody shares anything but the members of a group.
        let alone = |name: u64| 1_000 + group.map_or(name, |group| group.0);
        for _ in 0..members {
            let limits = Limits {
                circle: if self.scenario.config.prefix_caching {
                    salt
                } else {
                    alone(self.names)
                },
                seed: self.rng.below(4) as u64,
                max_length: self
                    .rng
                    .within(prompt.len() + 1, self.scenario.longest.max(prompt.len() + 1)),
                min_tokens: self.rng.pick(&[0, 0, 3]),
                stop_tokens: self.rng.pick(&[&[][..], &[0], &[0, 1]]).to_vec(),
                speculation: DraftBudget {
                    ngram: self.rng.pick(&[0, 2, 15, 15, 15]),
                    neural: self.rng.pick(&[0, 2, 15, 15, 15]),
                },
            };
            let deadline = self.rng.chance(self.scenario.deadlines);
            let deadline = deadline.then(|| self.clock.peek() + self.rng.below(2_000_000) as u64);
            let grammar = self.confine(&prompt, &limits);
            let name = self.add(&prompt, limits, priority, |new, params| {
                new.constraint = grammar.clone().map(|grammar| Arc::new(Shared(grammar)) as _);
                new.group = group;
                new.tenant = tenant;
                new.salt = salt;
                new.deadline = deadline;
                params.prompt_logprobs = logprobs;
                params.logprobs = logprobs;
            });
            if let (Some(name), Some(grammar)) = (name, grammar) {
                self.set_grammar(name, grammar);
            }
        }
    }

    /// Tells device and caller of what confines a text. Nothing of it has run yet.
    fn set_grammar(&mut self, name: RequestId, grammar: Arc<Grammar>) {
        let caller = self.alive.get_mut(&name.0).expect("alive");
        Rc::make_mut(&mut caller.script).grammar = Some(grammar);
        self.scripts.borrow_mut().insert(name.0, caller.script.clone());
    }

    /// Hands a request in; the closure adds what is special about it.
    pub fn add(
        &mut self,
        prompt: &[TokenId],
        limits: Limits,
        priority: i32,
        special: impl FnOnce(&mut CheckedRequest, &mut SamplingParams),
    ) -> Option<RequestId> {
        let name = self.names;
        self.names += 1;
        let script = Rc::new(Script::new(prompt, &limits));
        let mut params = SamplingParams {
            seed: name,
            min_tokens: limits.min_tokens,
            ..SamplingParams::default()
        };
        let mut new = CheckedRequest {
            id: RequestId(name),
            prompt: prompt.into(),
            generated: Arc::default(),
            params: Arc::default(),
            stop_tokens: limits.stop_tokens.into(),
            priority,
            deadline: None,
            tenant: 0,
            salt: 0,
            max_length: limits.max_length,
            group: None,
            speculation: limits.speculation,
            constraint: None,
            pooling: None,
        };
        special(&mut new, &mut params);
        new.params = Arc::new(params);
        let caller = Caller {
            script: script.clone(),
            params: new.params.clone(),
            priority,
            tenant: new.tenant,
            apart: new.group.is_some() || new.constraint.is_some(),
            pooling: new.pooling,
            started: false,
            deadline: new.deadline,
            delivered: prompt.len(),
            scored: 1,
            asked: None,
        };
        if self.pipeline.scheduler_mut().add(new).is_err() {
            self.tally.rejected += 1;
            return None;
        }
        self.scripts.borrow_mut().insert(name, script);
        self.alive.insert(name, caller);
        Some(RequestId(name))
    }

    /// Hands in a request that generates `length` tokens.
    pub fn ask(&mut self, prompt: &[TokenId], length: usize) -> RequestId {
        self.add(prompt, Limits::length(prompt.len() + length), 0, |_, _| {})
            .expect("room in the queue")
    }

    /// Serves one request alone; returns its whole text and the number of tokens in its last delivery.
    pub fn serve(&mut self, prompt: &[TokenId], length: usize) -> (Vec<TokenId>, usize) {
        let id = self.ask(prompt, length);
        let text = self.alive[&id.0].script.tokens.clone();
        let mut last = 0;
        while !self.pipeline.is_idle() {
            if let Some(request_output) = self.turn().request_outputs.last() {
                last = request_output.tokens.len();
            }
        }
        self.pipeline.scheduler().check_integrity();
        (text, last)
    }

    fn prompt(&mut self) -> Vec<TokenId> {
        let mut prompt = Vec::new();
        let longest = self.scenario.longest - 1;
        if !self.texts.is_empty() && self.rng.chance(self.scenario.continues) {
            let text = &self.texts[self.rng.below(self.texts.len())];
            // All of it, as the next turn of a chat would, or some of it.
            let len = if self.rng.chance(50) {
                text.len()
            } else {
                self.rng.within(1, text.len())
            };
            prompt.extend_from_slice(&text[..len.min(longest)]);
        }
        let room = longest - prompt.len();
        let fresh = self
            .rng
            .within(usize::from(prompt.is_empty()), room.max(1))
            .min(room);
        let fresh = if prompt.is_empty() {
            fresh.max(1)
        } else {
            self.rng.below(fresh + 1)
        };
        prompt.extend((0..fresh).map(|_| (self.rng.next() % VOCABULARY) as TokenId));
        prompt
    }

    /// One turn of the loop, and the check of what it brought.
    pub fn turn(&mut self) -> Stepped {
        let stepped = self.pipeline.step().expect("the device works");
        self.check_order();
        for request_output in &stepped.request_outputs {
            self.check_delivery(request_output);
        }
        if let Some(record) = stepped.collected {
            self.tally.steps += 1;
            self.check_record(&record);
            self.check_progress(&stepped.request_outputs);
        }
        stepped
    }

    fn check_delivery(&mut self, request_output: &RequestOutput) {
        let name = request_output.id.0;
        let Some(caller) = self.alive.get_mut(&name) else {
            panic!("request {name} got something behind its end: {request_output:?}");
        };
        for token in &request_output.tokens {
            assert_eq!(
                Some(token),
                caller.script.tokens.get(caller.delivered),
                "request {name} at {}",
                caller.delivered
            );
            caller.delivered += 1;
            self.tally.tokens += 1;
        }
        let asked = caller.params.logprobs.is_some();
        assert_eq!(
            request_output.logprobs.len(),
            if asked { request_output.tokens.len() } else { 0 }
        );
        for (back, logprobs) in request_output.logprobs.iter().rev().enumerate() {
            assert_eq!(logprobs.chosen as usize, caller.delivered - 1 - back);
        }
        for logprobs in &request_output.prompt_logprobs {
            assert_eq!(
                logprobs.chosen as usize, caller.scored,
                "request {name}: prompt scores"
            );
            caller.scored += 1;
        }
        assert_eq!(
            request_output.finish.is_some(),
            request_output.speculation.is_some()
        );
        if !request_output.embedding.is_empty() {
            assert_eq!(
                request_output.finish,
                Some(FinishReason::Length),
                "request {name} has a vector"
            );
            let pooling = caller.pooling.expect("a vector that nobody asked for");
            assert_eq!(
                request_output.embedding,
                caller.script.vector(pooling),
                "request {name}"
            );
            self.tally.vectors += 1;
        } else if caller.pooling.is_some() {
            assert_ne!(
                request_output.finish,
                Some(FinishReason::Length),
                "request {name} lacks its vector"
            );
        }
        if let Some(finish) = request_output.finish {
            self.check_finish(name, finish);
        }
    }

    fn check_finish(&mut self, name: u64, finish: FinishReason) {
        let Some(caller) = self.alive.remove(&name) else {
            panic!("request {name} ended twice")
        };
        let complete = caller.delivered == caller.script.tokens.len();
        let grammar = caller.script.grammar.as_deref();
        let exhausted = grammar.filter(|grammar| grammar.last == caller.delivered);
        self.tally.completed += u64::from(finish == FinishReason::Stop && exhausted.is_some());
        match finish {
            FinishReason::Stop if caller.asked != Some(finish) && exhausted.is_some() => {
                assert!(exhausted.is_some_and(|grammar| !grammar.dead_end || caller.script.stops));
            }
            FinishReason::Length => assert!(complete && !caller.script.stops, "request {name} is cut short"),
            FinishReason::Stop if complete => {
                assert!(
                    caller.script.stops || caller.asked == Some(FinishReason::Stop),
                    "request {name} did not stop"
                );
            }
            FinishReason::Constraint => {
                assert!(
                    exhausted.is_some_and(|grammar| grammar.dead_end),
                    "request {name}"
                );
            }
            FinishReason::Moved => panic!("request {name} went elsewhere"),
            FinishReason::Stop | FinishReason::Cancelled => {
                assert_eq!(caller.asked, Some(finish), "request {name}");
            }
            FinishReason::Deadline => {
                let deadline = caller.deadline.expect("a request without a deadline");
                assert!(
                    deadline <= self.clock.peek(),
                    "request {name} ended before its deadline"
                );
            }
        }
        if complete && caller.params.prompt_logprobs.is_some() {
            assert_eq!(
                caller.scored,
                caller.script.prompt_len.max(1),
                "request {name} lacks prompt scores"
            );
        }
        self.tally.finished[finish as usize] += 1;
        let text = caller.script.tokens[..caller.delivered].to_vec();
        self.texts.push(text);
        if self.texts.len() > 12 {
            self.texts.remove(0);
        }
        self.scripts.borrow_mut().remove(&name);
    }

    fn check_record(&mut self, record: &StepRecord) {
        let bubble = record.bubble_ns.unwrap_or(0);
        if self.scenario.depth >= 2 && self.scenario.pauses == 0 {
            assert_eq!(
                bubble, 0,
                "step {}: the device was idle and there was work",
                record.step
            );
        }
        self.tally.bubbles += u64::from(bubble > 0);
        assert!(
            record.submit.ns() <= 2 * super::device::HOST_NS,
            "the host waited in submit"
        );
        assert!(
            record.plan.ns() <= 2 * super::device::HOST_NS,
            "the host waited in plan"
        );
    }

    /// Requests of one priority and tenant start in the order of their arrival. Those that wait for a group are apart; and
    /// one whose prompt is scored lets the next begin with tokens for which it has no samples left.
    fn check_order(&mut self) {
        if self.scenario.scores > 0 {
            return;
        }
        let admitted = &self.pipeline.runner().admitted[self.seen..];
        self.seen += admitted.len();
        for name in admitted {
            let Some(caller) = self.alive.get_mut(name).filter(|caller| !caller.apart) else {
                continue;
            };
            if std::mem::replace(&mut caller.started, true) {
                continue;
            }
            let before = self.latest.insert((caller.priority, caller.tenant), *name);
            if let Some(before) = before {
                assert!(before < *name, "request {name} started behind request {before}");
            }
        }
    }

    /// The first in order of service gets on: nobody can be put before it for ever.
    fn check_progress(&mut self, request_outputs: &[RequestOutput]) {
        let first = self
            .alive
            .iter()
            .map(|(name, caller)| (caller.priority, *name))
            .min();
        let moved = |(_, name): (i32, u64)| {
            request_outputs
                .iter()
                .any(|request_output| request_output.id.0 == name)
        };
        self.stalled = if first == self.first && !first.is_some_and(moved) {
            self.stalled + 1
        } else {
            0
        };
        self.first = first;
        assert!(
            self.stalled < 3_000,
            "request {first:?} is first and has not moved for {} steps",
            self.stalled
        );
    }
}
