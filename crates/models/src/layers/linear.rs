//! A matrix product with what follows it.

use crate::loader::Part;
use crate::{Forward, Loader, ModelError};
use paceline_device::{Backend, DeviceError, Epilogue, Product, Scratch};

/// `y = (x · Wᵀ + bias) · scale`.
pub struct Linear<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Buffer<f32>>,
    scale: Option<B::Buffer<f32>>,
    /// The number in `scale`, if it is one for all outputs.
    uniform_scale: Option<f32>,
    outputs: usize,
}

impl<B: Backend> Linear<B> {
    /// One matrix, without bias.
    pub fn load(
        loader: &Loader<'_, B>,
        name: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<Self, ModelError> {
        Self::stack(
            loader,
            &[Part::whole(format!("{name}.weight"), outputs, inputs)],
            outputs,
        )
    }

    /// One matrix whose outputs are tokens.
    pub fn load_head(
        loader: &Loader<'_, B>,
        name: &str,
        vocabulary: usize,
        inputs: usize,
    ) -> Result<Self, ModelError> {
        let part = Part::whole(format!("{name}.weight"), vocabulary, inputs).of_vocabulary();
        Self::stack(loader, &[part], vocabulary)
    }

    /// One matrix that decides where tokens go.
    pub fn load_router(
        loader: &Loader<'_, B>,
        name: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<Self, ModelError> {
        let part = Part::whole(format!("{name}.weight"), outputs, inputs).of_router();
        Self::stack(loader, &[part], outputs)
    }

    /// One matrix with the bias beside it, if there is to be one.
    pub fn load_with_bias(
        loader: &Loader<'_, B>,
        name: &str,
        (outputs, inputs): (usize, usize),
        biased: bool,
    ) -> Result<Self, ModelError> {
        let mut linear = Self::load(loader, name, outputs, inputs)?;
        if biased {
            linear.bias = Some(loader.buffer(&format!("{name}.bias"), &[outputs])?);
        }
        Ok(linear)
    }

    /// Several matrices whose outputs stand side by side.
    pub fn stack(loader: &Loader<'_, B>, parts: &[Part], outputs: usize) -> Result<Self, ModelError> {
        Ok(Self::shared(loader.weight(parts)?, outputs))
    }

    /// Gate and up of a gated feed-forward layer, stacked, for [`Backend::linear_activate`].
    pub fn gated(loader: &Loader<'_, B>, parts: &[Part], outputs: usize) -> Result<Self, ModelError> {
        Ok(Self::shared(loader.gated_weight(parts)?, outputs))
    }

    /// A weight that is already on the device (tied embeddings).
    pub fn shared(weight: B::Weight, outputs: usize) -> Self {
        Self {
            weight,
            bias: None,
            scale: None,
            uniform_scale: None,
            outputs,
        }
    }

    /// The first `outputs` of an output matrix, which has no bias and one scale for all: the same weight, seen as a smaller
    /// one.
    pub fn first_outputs(&self, backend: &B, outputs: usize) -> Result<Self, DeviceError> {
        assert!(
            self.bias.is_none() && self.scale.is_some() == self.uniform_scale.is_some(),
            "an output matrix"
        );
        let scale = self.uniform_scale.map(|scale| vec![scale; outputs]);
        Ok(Self {
            scale: scale.map(|scale| backend.buffer_from(&scale)).transpose()?,
            uniform_scale: self.uniform_scale,
            ..Self::shared(backend.first_outputs(&self.weight, outputs), outputs)
        })
    }

    /// Adds these to the outputs.
    pub fn set_bias(&mut self, loader: &Loader<'_, B>, values: &[f32]) -> Result<(), ModelError> {
        assert_eq!(values.len(), self.outputs, "one bias per output");
        self.bias = Some(loader.upload(values)?);
        Ok(())
    }

    /// Multiplies the outputs by these; all ones costs nothing.
    pub fn set_scale(&mut self, loader: &Loader<'_, B>, values: &[f32]) -> Result<(), ModelError> {
        assert_eq!(values.len(), self.outputs, "one scale per output");
        if values.iter().any(|value| (value - 1.0).abs() > 0.0) {
            self.scale = Some(loader.upload(values)?);
        }
        Ok(())
    }

    /// Multiplies all outputs by one number.
    pub fn set_uniform_scale(&mut self, loader: &Loader<'_, B>, value: f32) -> Result<(), ModelError> {
        self.set_scale(loader, &vec![value; self.outputs])?;
        self.uniform_scale = self.scale.as_ref().map(|_| value);
        Ok(())
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The device weight.
    pub fn weight(&self) -> &B::Weight {
        &self.weight
    }

    /// What happens to the outputs.
    pub fn epilogue(&self) -> Epilogue<'_, B> {
        Epilogue {
            bias: self.bias.as_ref(),
            scale: self.scale.as_ref(),
        }
    }

    /// The product of `x` into a tensor of the caller's, as part of a wider operation.
    pub fn product<'a>(&'a self, x: &'a B::Tensor, out: &'a mut B::Tensor) -> Product<'a, B> {
        Product {
            x,
            w: &self.weight,
            epilogue: self.epilogue(),
            out,
        }
    }

    /// Into a tensor of the caller's.
    pub fn run_into(&self, cx: &Forward<'_, B>, x: &B::Tensor, out: &mut B::Tensor) {
        cx.backend.linear(x, &self.weight, self.epilogue(), out);
    }

    /// Into scratch over the step's tokens.
    pub fn run(&self, cx: &Forward<'_, B>, x: &B::Tensor) -> Result<Scratch<B>, DeviceError> {
        let mut out = cx.tokens(self.outputs)?;
        self.run_into(cx, x, &mut out);
        Ok(out)
    }
}
