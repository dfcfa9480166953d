#include "brigade/data_parallel/sync_batch_norm.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <vector>

#include "brigade/base/error.h"

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
  Tensor mean, variance;  // [C], of x's wide dtype
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

// Keeps the group for backward.
struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(CommunicatorPtr held) : group(std::move(held)) {}
  CommunicatorPtr group;
};

struct NormalizeOverRanks : torch::autograd::Function<NormalizeOverRanks> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& x,
      const Tensor& mean,
      const Tensor& rstd,
      double count,
      const CommunicatorPtr& group) {
    const auto normed =
        ((x.to(mean.scalar_type()) - per_channel(mean, x)) *
         per_channel(rstd, x));
    context->save_for_backward({normed, rstd});
    context->saved_data["count"] = count;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    context->saved_data["dtype"] = x.scalar_type();
    return normed;
  }

  // d x = rstd (d y - mean(d y) - normed mean(d y normed)), over all ranks.
  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& normed = saved[0];
    const Tensor& rstd = saved[1];
    const auto capsule = context->saved_data["group"].toCapsule();
    Communicator& group = *static_cast<GroupHolder&>(*capsule).group;
    const auto dy = gradients[0].to(normed.scalar_type());
    const int64_t channels = dy.size(1);
    const auto packed = torch::cat(
        {dy.to(torch::kDouble).sum(reduced_dims(dy)),
         (dy * normed).to(torch::kDouble).sum(reduced_dims(dy))});
    group.all_reduce(packed)->wait();
    packed.div_(context->saved_data["count"].toDouble());
    const auto mean = [&](int64_t which) {
      return per_channel(
          packed.narrow(0, which * channels, channels).to(dy.scalar_type()),
          dy);
    };
    const auto dx = (dy - mean(0) - normed * mean(1)) * per_channel(rstd, dy);
    return {
        dx.to(context->saved_data["dtype"].toScalarType()),
        Tensor(),
        Tensor(),
        Tensor(),
        Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(
    int64_t channels,
    CommunicatorPtr communicator,
    const torch::nn::BatchNormOptions& options)
    : options_(options), communicator_(std::move(communicator)) {
  if (options.affine()) {
    weight = register_parameter("weight", torch::ones({channels}));
    bias = register_parameter("bias", torch::zeros({channels}));
  }
  if (options.track_running_stats()) {
    running_mean = register_buffer("running_mean", torch::zeros({channels}));
    running_var = register_buffer("running_var", torch::ones({channels}));
    num_batches_tracked =
        register_buffer("num_batches_tracked", torch::tensor(0, torch::kLong));
  }
}

void SyncBatchNormImpl::share(
    const Tensor& other_weight,
    const Tensor& other_bias,
    const Tensor& other_mean,
    const Tensor& other_var,
    const Tensor& other_count) {
  const auto take = [](Tensor& mine, const Tensor& other) {
    if (mine.defined() && other.defined())
      mine.set_data(other.detach());
  };
  take(weight, other_weight);
  take(bias, other_bias);
  take(running_mean, other_mean);
  take(running_var, other_var);
  take(num_batches_tracked, other_count);
}

Tensor SyncBatchNormImpl::forward(const Tensor& x) {
  if (x.dim() < 2 || x.size(1) != options_.num_features())
    throw ConfigError(fmt::format(
        "[sync_batch_norm] the input has {} dims{}; expected [N, {}] or [N, "
        "{}, ...]",
        x.dim(),
        x.dim() < 2 ? "" : fmt::format(" and {} channels", x.size(1)),
        options_.num_features(),
        options_.num_features()));
  const bool uses_batch = is_training() || !running_mean.defined();
  if (!uses_batch)
    return torch::batch_norm(
        x,
        weight,
        bias,
        running_mean,
        running_var,
        /*training=*/false,
        /*momentum=*/0.0,
        options_.eps(),
        /*cudnn_enabled=*/false);
  const Statistics all = all_statistics(x, *communicator_);
  if (all.count < 2)
    throw ConfigError(
        "[sync_batch_norm] all ranks together have one value per channel: "
        "there is no variance to normalise by");
  const auto dtype =
      x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  if (is_training() && running_mean.defined()) {
    const torch::NoGradGuard no_grad;
    num_batches_tracked.add_(1);
    // Without a momentum, the mean over all batches so far.
    const double momentum = options_.momentum()
                                ? *options_.momentum()
                                : 1.0 / num_batches_tracked.item<double>();
    running_mean.lerp_(all.mean.to(running_mean.scalar_type()), momentum);
    running_var.lerp_(
        (all.variance * (all.count / (all.count - 1)))
            .to(running_var.scalar_type()),
        momentum);
  }
  auto y = NormalizeOverRanks::apply(
      x,
      all.mean.to(dtype),
      (all.variance + options_.eps()).rsqrt().to(dtype),
      all.count,
      communicator_);
  if (weight.defined())
    y = y * per_channel(weight, x) + per_channel(bias, x);
  return y.to(x.scalar_type());
}

torch::nn::Sequential convert_sync_batch_norm(
    const torch::nn::Sequential& layers,
    const CommunicatorPtr& communicator) {
  torch::nn::Sequential converted;
  for (const torch::nn::AnyModule& layer : *layers) {
    const auto module = layer.ptr();
    if (const auto* norm1 = module->as<torch::nn::BatchNorm1d>())
      converted->push_back(make_sync_batch_norm(*norm1, communicator));
    else if (const auto* norm2 = module->as<torch::nn::BatchNorm2d>())
      converted->push_back(make_sync_batch_norm(*norm2, communicator));
    else if (const auto* norm3 = module->as<torch::nn::BatchNorm3d>())
      converted->push_back(make_sync_batch_norm(*norm3, communicator));
    else
      converted->push_back(layer);
  }
  return converted;
}

}  // namespace brigade
