#include "tests/support/program_net.h"

#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/normalization.h>

namespace brigade::testing {
namespace {

using Net = ProgramNetOptions;

// Large: norms of few values must not make much of rounding.
constexpr double kNormEps = 0.1;

torch::Tensor normed(torch::nn::Module& norm, const torch::Tensor& x) {
  if (auto* layer = norm.as<torch::nn::LayerNorm>())
    return layer->forward(x);
  return norm.as<torch::nn::GroupNorm>()->forward(x);
}

}  // namespace

ProgramNet::ProgramNet(const ProgramNetOptions& options) : options_(options) {
  namespace nn = torch::nn;
  const int64_t width = options.width;
  in_ = register_module("in", nn::Linear(options.features, width));
  if (options.embedding != Net::Embedding::kNone)
    embedding_ = register_module(
        "embedding",
        nn::Embedding(
            nn::EmbeddingOptions(options.vocabulary, width)
                .sparse(options.embedding == Net::Embedding::kSparse)));
  register_module("layers", layers_);
  register_module("norms", norms_);
  for (int64_t i = 0; i < options.layers; ++i) {
    layers_->push_back(
        nn::Linear(nn::LinearOptions(width, width).bias(i % 2 == 0)));
    if (options.norm == Net::Norm::kLayer)
      norms_->push_back(
          nn::LayerNorm(nn::LayerNormOptions({width}).eps(kNormEps)));
    else if (options.norm == Net::Norm::kGroup)
      norms_->push_back(
          nn::GroupNorm(nn::GroupNormOptions(width / 4, width).eps(kNormEps)));
  }
  if (options.branch != Net::Branch::kNone)
    branch_ = register_module("branch", nn::Linear(width, width));
  if (options.head == Net::Head::kLinear)
    head_ = register_module("head", nn::Linear(width, options.outputs));
  if (options.second_head == Net::SecondHead::kOnTrunk)
    second_ = register_module("second", nn::Linear(width, options.outputs));
  if (options.second_head == Net::SecondHead::kTower) {
    tower_ = register_module("tower", nn::Linear(options.features, width));
    second_ = register_module("second", nn::Linear(width, options.outputs));
  }
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (torch::Tensor& param : parameters()) {
    const auto index = torch::arange(param.numel(), torch::kFloat);
    param.copy_((0.6 * torch::sin(index * 1.7 + static_cast<double>(++seed)))
                    .view(param.sizes()));
  }
  if (options.frozen_layer >= 0) {
    for (auto& param :
         layers_[static_cast<size_t>(options.frozen_layer)]->parameters())
      param.set_requires_grad(false);
  }
}

std::vector<torch::Tensor> ProgramNet::forward(
    const torch::Tensor& features,
    const torch::Tensor& ids,
    BranchUse branch) {
  torch::Tensor x = torch::tanh(in_(features));
  if (!embedding_.is_empty())
    x = x + embedding_(ids);
  for (size_t i = 0; i < layers_->size(); ++i) {
    auto* layer = layers_[i]->as<torch::nn::Linear>();
    const int64_t repeats = i == 0 ? options_.repeats : 1;
    for (int64_t r = 0; r < repeats; ++r)
      x = x + torch::tanh(layer->forward(x));
    if (i < norms_->size())
      x = normed(*norms_[i], x);
  }
  if (branch == BranchUse::kUse)
    x = x + torch::tanh(branch_(x));
  std::vector<torch::Tensor> heads = {
      head_.is_empty() ? torch::linear(x, embedding_->weight) : head_(x)};
  if (!tower_.is_empty())
    heads.push_back(second_(torch::tanh(tower_(features))));
  else if (!second_.is_empty())
    heads.push_back(second_(x));
  return heads;
}

}  // namespace brigade::testing
