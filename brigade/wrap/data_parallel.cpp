#include "brigade/wrap/data_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/same_on_ranks.h"
#include "brigade/data_parallel/shared_memory.h"
#include "brigade/wrap/weight_units.h"

namespace brigade {
namespace {

std::string describe(
    const WrapOptions& wrap,
    const std::vector<State>& buffers) {
  std::string text = fmt::format(
      "sync: {}\nbroadcast_buffers: {}\nmixed_precision: {}\n",
      to_string(wrap.sync),
      wrap.broadcast_buffers,
      wrap.mixed_precision.has_value());
  if (wrap.mixed_precision)
    text += describe(*wrap.mixed_precision);
  for (const State& buffer : buffers) {
    text += fmt::format(
        "buffer {}: [{}] {}\n",
        buffer.name,
        fmt::join(buffer.tensor.sizes(), ", "),
        c10::toString(buffer.tensor.scalar_type()));
  }
  return text;
}

// Converts buffers once, for the rest of their life, as DDP does.
void convert_buffers(
    const std::vector<Param>& params,
    const std::vector<State>& buffers,
    torch::ScalarType dtype,
    const std::vector<std::string>& kept) {
  const torch::NoGradGuard no_grad;
  std::vector<State> all;
  for (const State& buffer : buffers)
    all.push_back({buffer.name, buffer.tensor});
  for (const Param& param : params)
    all.push_back({param.name, param.tensor});
  const auto sharers = names_of_sharers(all);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const State& buffer = buffers[i];
    torch::Tensor tensor = buffer.tensor;
    if (!tensor.is_floating_point() ||
        std::find(kept.begin(), kept.end(), buffer.name) != kept.end())
      continue;
    if (!sharers[i].empty()) {
      throw UsageError(fmt::format(
          "[data_parallel] mixed precision is to convert buffer '{}', which "
          "shares memory with '{}', and would untie them: name it in keep, or "
          "leave buffer_dtype out",
          buffer.name,
          sharers[i]));
    }
    tensor.set_data(tensor.to(dtype));
  }
}

void refuse_collective_forward(const char* what, const char* remedy) {
  throw UsageError(fmt::format(
      "[data_parallel] uneven inputs with {}: its forward is collective, and "
      "ranks that have joined run none; {}, or give every rank the same number "
      "of steps",
      what,
      remedy));
}

}  // namespace

Wrapped wrap_tensors(
    std::vector<Param> params,
    const std::vector<State>& buffers,
    const std::vector<std::string>& kept,
    const CommunicatorPtr& communicator,
    GradSyncOptions options,
    const WrapOptions& wrap) {
  if (wrap.mixed_precision) {
    check(*wrap.mixed_precision);
    options = with_reduce_dtype(std::move(options), *wrap.mixed_precision);
  }
  check_same_on_ranks(
      describe(wrap, buffers), "wrap options or buffers", *communicator);
  Wrapped wrapped;
  if (wrap.mixed_precision) {
    wrapped.copies = std::make_unique<ComputeCopies>(
        params, wrap.mixed_precision->param_dtype, kept);
    if (wrap.mixed_precision->buffer_dtype)
      convert_buffers(
          params, buffers, *wrap.mixed_precision->buffer_dtype, kept);
  }
  wrapped.sync = make_grad_sync(wrap.sync, params, communicator, options);
  return wrapped;
}

std::vector<Param> parameters_of(
    const ModuleRef& module,
    const WrapOptions& wrap,
    Sharding sharding) {
  if (module.scripted != nullptr && !wrap.units.empty()) {
    throw UsageError(
        "[data_parallel] units are given, but a scripted module is gathered as "
        "one: leave them out");
  }
  std::vector<Param> params = parameters_of(module, wrap.ignore);
  if (sharding != Sharding::kParameters && !wrap.units.empty()) {
    throw UsageError(fmt::format(
        "[data_parallel] units are given, but sharding is {}, which leaves "
        "weights whole; set Sharding::kParameters, or leave units out",
        to_string(sharding)));
  }
  if (sharding == Sharding::kParameters && module.plain != nullptr)
    assign_units(
        *module.plain,
        wrap.units.empty() ? default_units(*module.plain) : wrap.units,
        params);
  return params;
}

void check_uneven_inputs(const ModuleRef& module, const WrapOptions& wrap) {
  if (wrap.broadcast_buffers)
    refuse_collective_forward(
        "broadcast_buffers", "leave it off: join() ends with equal buffers");
  if (has_sync_batch_norm(module))
    refuse_collective_forward("a SyncBatchNorm", "use BatchNorm");
}

void throw_unseen_output() {
  throw UsageError(
      "[data_parallel] forward() returns a type whose tensors mixed precision "
      "cannot see; return a Tensor, or a tuple, pair, vector, array or "
      "optional of tensors");
}

NoSync::Mode mode_of_micro_batch(size_t index, size_t count) {
  if (index >= count) {
    throw UsageError(fmt::format(
        "[data_parallel] accumulate_until_last({}, {}): a step of {} "
        "micro-batches has none with that index; count from 0",
        index,
        count,
        count));
  }
  return index + 1 < count ? NoSync::Mode::kAccumulate : NoSync::Mode::kReduce;
}

}  // namespace brigade
