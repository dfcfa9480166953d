#include "brigade/wrap/sync_batch_norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/carried.h"

namespace brigade {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All dims but the channels'.
std::vector<int64_t> reduced_dims(const Tensor& x) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < x.dim(); ++dim)
    dims.push_back(dim);
  return dims;
}

// [C] as [1, C, 1, ...].
Tensor per_channel(const Tensor& values, const Tensor& like) {
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

struct Statistics {
  Tensor mean, variance;  // [C] float64
  double count = 0;       // values per channel, of all ranks
};

// float64 sums: the square of the mean may be much larger than the variance.
Statistics all_statistics(const Tensor& x, Communicator& group) {
  const int64_t channels = x.size(1);
  const auto wide = x.detach().to(torch::kDouble);
  const auto packed = torch::cat(
      {wide.sum(reduced_dims(x)),
       wide.square().sum(reduced_dims(x)),
       torch::full(
           {1},
           static_cast<double>(x.numel()) / static_cast<double>(channels),
           wide.options())});
  group.all_reduce(packed)->wait();
  Statistics all;
  all.count = packed[2 * channels].item<double>();
  all.mean = packed.narrow(0, 0, channels) / all.count;
  all.variance =
      (packed.narrow(0, channels, channels) / all.count - all.mean.square())
          .clamp_min(0);
  return all;
}

// The sum over ranks; its gradient is a sum over ranks too, because every
// rank's result depends on every rank's values.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& x,
      const CommunicatorPtr& group) {
    ops::carry(context, group);
    const Tensor sum = x.clone();
    group->all_reduce(sum)->wait();
    return sum;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    return {
        SumOverRanks::apply(
            gradients[0], ops::carried<CommunicatorPtr>(context)),
        Tensor()};
  }
};

struct Normalization {
  CommunicatorPtr group;
  double count = 0;                         // values per channel, of all ranks
  torch::ScalarType dtype = torch::kFloat;  // of the input
};

// Returns {normed, rstd}, both functions of x alone: mean and variance are
// those of all ranks' x. rstd is a result so that backward, which multiplies by
// it, can be differentiated.
struct NormalizeOverRanks : torch::autograd::Function<NormalizeOverRanks> {
  static variable_list forward(
      AutogradContext* context,
      const Tensor& x,
      const Statistics& all,
      const CommunicatorPtr& group,
      double eps) {
    const auto dtype =
        x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto rstd = (all.variance + eps).rsqrt().to(dtype);
    const auto normed =
        ((x.to(dtype) - per_channel(all.mean.to(dtype), x)) *
         per_channel(rstd, x));
    context->save_for_backward({normed, rstd});
    context->set_materialize_grads(false);
    ops::carry(context, Normalization{group, all.count, x.scalar_type()});
    return {normed, rstd};
  }

  // d x = rstd (d y - mean(d y) - normed mean(d y normed))
  //       - rstd^2 normed mean(d rstd),
  // with means over all ranks; only a second derivative has a d rstd.
  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& normed = saved[0];
    const Tensor& rstd = saved[1];
    const auto& call = ops::carried<Normalization>(context);
    const Tensor& drstd = gradients[1];
    if (!gradients[0].defined() && !drstd.defined())
      return variable_list(4);
    const auto dy = gradients[0].defined()
                        ? gradients[0].to(normed.scalar_type())
                        : torch::zeros_like(normed);
    const int64_t channels = dy.size(1);
    std::vector<Tensor> sums = {
        dy.to(torch::kDouble).sum(reduced_dims(dy)),
        (dy * normed).to(torch::kDouble).sum(reduced_dims(dy))};
    if (drstd.defined())
      sums.push_back(drstd.to(torch::kDouble));
    const auto means =
        SumOverRanks::apply(torch::cat(sums), call.group) / call.count;
    const auto mean = [&](int64_t which) {
      return per_channel(
          means.narrow(0, which * channels, channels).to(dy.scalar_type()), dy);
    };
    auto dx = (dy - mean(0) - normed * mean(1)) * per_channel(rstd, dy);
    if (drstd.defined())
      dx = dx - normed * (per_channel(rstd.square(), dy) * mean(2));
    return {dx.to(call.dtype), Tensor(), Tensor(), Tensor()};
  }
};

// ---- conversion

bool is_plain_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

// Precondition: is_plain_batch_norm().
SyncBatchNorm converted(
    const torch::nn::Module& module,
    const CommunicatorPtr& group) {
  if (const auto* norm1 = module.as<torch::nn::BatchNorm1d>())
    return make_sync_batch_norm(*norm1, group);
  if (const auto* norm2 = module.as<torch::nn::BatchNorm2d>())
    return make_sync_batch_norm(*norm2, group);
  return make_sync_batch_norm(*module.as<torch::nn::BatchNorm3d>(), group);
}

// The place of a BatchNorm in a Sequential.
struct PlaceOfNorm {
  torch::nn::SequentialImpl* sequential;
  size_t index;
  std::string name;  // in it
};

struct FoundNorms {
  std::vector<PlaceOfNorm> in_sequentials;
  std::vector<std::string> elsewhere;  // full names
  std::set<const torch::nn::Module*> seen;

  void look_in(torch::nn::Module& module, const std::string& prefix) {
    if (!seen.insert(&module).second)
      return;
    auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
    size_t index = 0;
    for (const auto& child : module.named_children()) {
      const std::string name = prefix + child.key();
      if (!is_plain_batch_norm(*child.value()))
        look_in(*child.value(), name + ".");
      else if (sequential != nullptr)
        in_sequentials.push_back({sequential, index, child.key()});
      else
        elsewhere.push_back("'" + name + "'");
      ++index;
    }
  }
};

BatchNormTensors fresh_tensors(
    int64_t channels,
    const torch::nn::BatchNormOptions& options) {
  BatchNormTensors tensors;
  if (options.affine()) {
    tensors.weight = torch::ones({channels}).requires_grad_();
    tensors.bias = torch::zeros({channels}).requires_grad_();
  }
  if (options.track_running_stats()) {
    tensors.running_mean = torch::zeros({channels});
    tensors.running_var = torch::ones({channels});
    tensors.num_batches_tracked = torch::tensor(0, torch::kLong);
  }
  return tensors;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(
    int64_t channels,
    CommunicatorPtr communicator,
    const torch::nn::BatchNormOptions& options)
    : SyncBatchNormImpl(
          fresh_tensors(channels, options),
          std::move(communicator),
          options) {}

SyncBatchNormImpl::SyncBatchNormImpl(
    const BatchNormTensors& tensors,
    CommunicatorPtr communicator,
    const torch::nn::BatchNormOptions& options)
    : options_(options), communicator_(std::move(communicator)) {
  register_tensors(tensors);
}

void SyncBatchNormImpl::reset() {
  BatchNormTensors tensors = fresh_tensors(options_.num_features(), options_);
  if (weight.defined()) {
    tensors.weight.set_requires_grad(weight.requires_grad());
    tensors.bias.set_requires_grad(bias.requires_grad());
  }
  register_tensors(tensors);
}

void SyncBatchNormImpl::register_tensors(const BatchNormTensors& tensors) {
  const auto parameter = [this](const char* name, const Tensor& tensor) {
    return tensor.defined()
               ? register_parameter(name, tensor, tensor.requires_grad())
               : tensor;
  };
  const auto buffer = [this](const char* name, const Tensor& tensor) {
    return tensor.defined() ? register_buffer(name, tensor) : tensor;
  };
  weight = parameter("weight", tensors.weight);
  bias = parameter("bias", tensors.bias);
  running_mean = buffer("running_mean", tensors.running_mean);
  running_var = buffer("running_var", tensors.running_var);
  num_batches_tracked =
      buffer("num_batches_tracked", tensors.num_batches_tracked);
}

Tensor SyncBatchNormImpl::forward(const Tensor& x) {
  if (x.dim() < 2 || x.size(1) != options_.num_features())
    throw UsageError(fmt::format(
        "[sync_batch_norm] the input has {} dims{}; expected [N, {}] or [N, "
        "{}, ...]",
        x.dim(),
        x.dim() < 2 ? "" : fmt::format(" and {} channels", x.size(1)),
        options_.num_features(),
        options_.num_features()));
  if (!is_training())
    return torch::batch_norm(
        x,
        weight,
        bias,
        running_mean,
        running_var,
        /*training=*/!running_mean.defined(),
        /*momentum=*/0.0,
        options_.eps(),
        /*cudnn_enabled=*/false);
  const Statistics all = all_statistics(x, *communicator_);
  if (all.count < 2)
    throw UsageError(
        "[sync_batch_norm] all ranks together have one value per channel: "
        "there is no variance to normalise by");
  if (running_mean.defined()) {
    const torch::NoGradGuard no_grad;
    num_batches_tracked.add_(1);
    // Without a momentum it is the mean over all batches so far.
    const double momentum = options_.momentum()
                                ? *options_.momentum()
                                : 1.0 / num_batches_tracked.item<double>();
    running_mean.lerp_(all.mean.to(running_mean.scalar_type()), momentum);
    running_var.lerp_(
        (all.variance * (all.count / (all.count - 1)))
            .to(running_var.scalar_type()),
        momentum);
  }
  Tensor y =
      NormalizeOverRanks::apply(x, all, communicator_, options_.eps())[0];
  if (weight.defined())
    y = y * per_channel(weight, x) + per_channel(bias, x);
  return y.to(x.scalar_type());
}

void convert_sync_batch_norm(
    torch::nn::Module& module,
    const CommunicatorPtr& communicator) {
  FoundNorms found;
  if (is_plain_batch_norm(module))
    found.elsewhere.emplace_back("the module itself");
  found.look_in(module, "");
  if (!found.elsewhere.empty()) {
    throw UsageError(fmt::format(
        "[sync_batch_norm] cannot convert {}: only a Sequential's BatchNorms "
        "can be replaced, a module's member cannot; make it a "
        "brigade::SyncBatchNorm there, from the start or by "
        "make_sync_batch_norm()",
        fmt::join(found.elsewhere, ", ")));
  }
  // A module that is used in several places stays one module.
  std::map<const torch::nn::Module*, SyncBatchNorm> made;
  for (const PlaceOfNorm& place : found.in_sequentials) {
    torch::nn::AnyModule& layer =
        *(place.sequential->begin() + static_cast<std::ptrdiff_t>(place.index));
    const auto norm = layer.ptr();
    auto sync = made.find(norm.get());
    if (sync == made.end())
      sync = made.emplace(norm.get(), converted(*norm, communicator)).first;
    place.sequential->replace_module(place.name, sync->second);
    layer = torch::nn::AnyModule(sync->second);
  }
}

}  // namespace brigade
