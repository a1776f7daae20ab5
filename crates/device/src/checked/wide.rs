//! Wide operations: watched as operations of their own, so that a body of the device's own is what runs.

use super::Checked;
use super::handles::CheckedTensor;
use crate::Backend;
use crate::args::{
    Activation, CausalConv, DeltaRule, GatedNorm, Mixture, Product, ResidualNorm, SampledProduct, Sampling,
    StateSpace,
};

impl<B: Backend> Checked<B> {
    /// An operation hands these parts of its scratch on to itself, and leaves nothing there for others.
    fn scratch(&self, name: &str, scratch: &CheckedTensor<B>, parts: &[(&str, &CheckedTensor<B>)]) {
        for (what, part) in parts {
            assert!(
                scratch.place.holds(&part.place),
                "contract: {name} takes {what} from elsewhere than its scratch"
            );
        }
        self.shared.lock().forget(&scratch.place);
    }

    pub(super) fn checked_linear_activate(
        &self,
        product: Product<'_, Self>,
        activation: Activation,
        out: &mut CheckedTensor<B>,
    ) {
        let name = "linear_activate";
        assert!(
            product.w.gated == matches!(activation, Activation::SiluGated { .. }),
            "contract: {name} with {activation:?} has a weight that was made for another operation"
        );
        self.watch(name, &[("x", product.x)], &[&*product.out, &*out]);
        self.scratch(name, product.out, &[]);
        self.inner
            .linear_activate(Self::product(product), activation, &mut out.inner);
    }

    pub(super) fn checked_linear_add_norm(&self, product: Product<'_, Self>, norm: ResidualNorm<'_, Self>) {
        let name = "linear_add_norm";
        Self::stored_rows(name, product.w);
        let read = [("x", product.x), ("residual", &*norm.residual)];
        self.watch(name, &read, &[&*product.out, &*norm.residual, &*norm.out]);
        self.scratch(name, product.out, &[]);
        self.inner
            .linear_add_norm(Self::product(product), Self::residual_norm(norm));
    }

    pub(super) fn checked_mix_experts(&self, mixture: Mixture<'_, Self>, norm: ResidualNorm<'_, Self>) {
        let name = "mix_experts";
        let Mixture { router, routing, .. } = mixture;
        Self::stored_rows(name, router.w);
        Self::room(name, "ids", &routing.ids, router.x.bucket * routing.chosen);
        // The norm's result may take the place of the input: it is written behind everything else.
        let scratch = [&*router.out, &routing.weights, &*mixture.out];
        self.watch(name, &[("x", router.x)], &scratch);
        let read = [("residual", &*norm.residual)];
        self.watch(name, &read, &[&*norm.residual, &*norm.out]);
        for tensor in scratch {
            self.scratch(name, tensor, &[]);
        }
        let mixture = Mixture {
            router: Self::product(router),
            scores: Self::scores(mixture.scores),
            shared: mixture.shared,
            routing: &mut Self::routing(routing),
            experts: mixture.experts,
            activation: mixture.activation,
            out: &mut mixture.out.inner,
        };
        self.inner.mix_experts(mixture, Self::residual_norm(norm));
    }

    pub(super) fn checked_mix_delta(
        &self,
        conv: CausalConv<'_, Self>,
        rule: DeltaRule<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        let name = "mix_delta";
        let read = [("x", conv.x), ("a", rule.a), ("b", rule.b), ("gate", norm.gate)];
        self.watch(name, &read, &[&*conv.out, &*rule.out, &*norm.out]);
        self.scratch(name, conv.out, &[("q", rule.q), ("k", rule.k), ("v", rule.v)]);
        self.scratch(name, rule.out, &[("x", norm.x)]);
        let steps = (Self::step(conv.step), Self::step(rule.step));
        let (conv, rule) = (Self::conv(conv, &steps.0), Self::rule(rule, &steps.1));
        self.inner.mix_delta(conv, rule, Self::gating(norm));
    }

    pub(super) fn checked_linear_mix_delta(
        &self,
        product: Product<'_, Self>,
        conv: CausalConv<'_, Self>,
        rule: DeltaRule<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        let name = "linear_mix_delta";
        Self::stored_rows(name, product.w);
        let written = [&*product.out, &*conv.out, &*rule.out, &*norm.out];
        self.watch(name, &[("x", product.x)], &written);
        let read = [("x", conv.x), ("a", rule.a), ("b", rule.b), ("gate", norm.gate)];
        self.scratch(name, product.out, &read);
        self.scratch(name, conv.out, &[("q", rule.q), ("k", rule.k), ("v", rule.v)]);
        self.scratch(name, rule.out, &[("x", norm.x)]);
        let steps = (Self::step(conv.step), Self::step(rule.step));
        let (conv, rule) = (Self::conv(conv, &steps.0), Self::rule(rule, &steps.1));
        self.inner
            .linear_mix_delta(Self::product(product), conv, rule, Self::gating(norm));
    }

    pub(super) fn checked_mix_state_space(
        &self,
        conv: CausalConv<'_, Self>,
        recurrence: StateSpace<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        let name = "mix_state_space";
        let read = [("x", conv.x), ("dt", recurrence.dt), ("gate", norm.gate)];
        self.watch(name, &read, &[&*conv.out, &*recurrence.out, &*norm.out]);
        let parts = [("x", recurrence.x), ("b", recurrence.b), ("c", recurrence.c)];
        self.scratch(name, conv.out, &parts);
        self.scratch(name, recurrence.out, &[("x", norm.x)]);
        let steps = (Self::step(conv.step), Self::step(recurrence.step));
        let (conv, recurrence) = (Self::conv(conv, &steps.0), Self::recurrence(recurrence, &steps.1));
        self.inner.mix_state_space(conv, recurrence, Self::gating(norm));
    }

    pub(super) fn checked_sample_states(
        &self,
        states: &CheckedTensor<B>,
        product: SampledProduct<'_, Self>,
        sampling: &Sampling<'_, Self>,
    ) {
        let name = "sample_states";
        Self::stored_rows(name, product.w);
        self.watch(name, &[("states", states)], &[&*product.states, &*product.logits]);
        self.scratch(name, product.states, &[]);
        self.scratch(name, product.logits, &[]);
        let (step, slots) = Self::check_sampling(name, sampling, product.logits.bucket);
        let sampling = Self::sampling(sampling, &step, slots.as_ref());
        self.inner
            .sample_states(&states.inner, Self::sampled_product(product), sampling);
    }
}
