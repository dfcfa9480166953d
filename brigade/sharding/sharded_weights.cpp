#include "brigade/sharding/sharded_weights.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/ops/releasable_memory.h"

namespace brigade {
namespace {

const void* storage_of(const torch::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// A tensor over the whole storage of a unit's weights of one dtype. Not made as
// a view, which libtorch refuses while the storage has no memory.
torch::Tensor whole_of(const torch::Tensor& part, int64_t numel) {
  auto whole = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(part.storage()), part.key_set(), part.dtype());
  whole.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return whole;
}

bool is_among(std::span<const int> units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

}  // namespace

ShardedWeights::ShardedWeights(
    const ParamMemory& memory,
    std::function<void(size_t segment)> before_gather)
    : memory_(&memory), before_gather_(std::move(before_gather)) {
  const std::vector<FlatSegment>& segments = memory.all_segments();
  std::map<const void*, int64_t> numel_of_storage;
  for (const FlatSegment& segment : segments)
    numel_of_storage[storage_of(segment.weight)] += segment.weight.numel();
  for (size_t s = 0; s < segments.size(); ++s) {
    const FlatSegment& segment = segments[s];
    const int index = segment.first_param->unit;
    if (index >= units())
      units_.resize(static_cast<size_t>(index) + 1);
    Unit& of = units_[static_cast<size_t>(index)];
    of.segments.push_back(s);
    const void* storage = storage_of(segment.weight);
    if (unit_of_storage_.emplace(storage, index).second) {
      of.memory.push_back(
          whole_of(segment.weight, numel_of_storage.at(storage)));
    }
  }
  accept_writes();
}

ShardedWeights::~ShardedWeights() {
  abandon();
  for (const Param& param : params())
    param.tensor.set_data(torch::empty({0}, param.tensor.options()));
}

ShardedWeights::Unit& ShardedWeights::unit(int index) {
  if (index < 0 || index >= units()) {
    throw UsageError(fmt::format(
        "[data_parallel] sharded weights have units 0 to {}, and no unit {}",
        units() - 1,
        index));
  }
  return units_[static_cast<size_t>(index)];
}

// ---- use

void ShardedWeights::use_all(std::span<const int> units) {
  const at::DisableRecordFunctionGuard unobserved;
  for (const int index : units)
    advance(index);
  for (const int index : units) {
    launch(index);
    wait(index);
  }
  const int next = expected_next();
  std::vector<int> over;
  for (int index = 0; index < this->units(); ++index) {
    const Unit& other = unit(index);
    if (other.state != State::kReleased && other.holders == 0 &&
        index != next && !is_among(units, index))
      over.push_back(index);
  }
  for (const int index : over)
    wait(index);
  if (next >= 0)
    take_over_memory(over, next);
  for (const int index : over)
    free(index);
  if (next >= 0)
    launch(next);
}

// Makes another unit the one in use, and notes that it came next.
void ShardedWeights::advance(int index) {
  const int current = std::get<1>(place_);
  if (index == current)
    return;
  if (current >= 0)
    next_[place_] = index;
  else
    first_ = index;
  place_ = {current, index, torch::GradMode::is_enabled()};
}

int ShardedWeights::expected_next() const {
  const auto found = next_.find(place_);
  return found == next_.end() ? -1 : found->second;
}

void ShardedWeights::end_pass() {
  const at::DisableRecordFunctionGuard unobserved;
  if (std::get<1>(place_) >= 0)
    next_[place_] = -1;
  place_ = {-1, -1, false};
  is_in_pass_ = false;
  for (int index = 0; index < units(); ++index) {
    if (unit(index).holders > 0)
      continue;
    wait(index);
    free(index);
  }
}

void ShardedWeights::expect_pass() {
  const at::DisableRecordFunctionGuard unobserved;
  if (first_ >= 0)
    launch(first_);
}

void ShardedWeights::abandon() {
  failure_ = nullptr;
  place_ = {-1, -1, false};
  is_in_pass_ = false;
  for (Unit& each : units_) {
    drop_works(each);
    if (each.holders > 0 && each.state != State::kGathering)
      continue;
    for (const torch::Tensor& flat : each.memory)
      ops::release(flat);
    each.state = State::kReleased;
  }
}

// ---- one unit

void ShardedWeights::launch(int index) {
  Unit& each = unit(index);
  if (each.state != State::kReleased && each.state != State::kNan)
    return;
  const torch::NoGradGuard no_grad;
  for (const size_t s : each.segments) {
    if (before_gather_)
      before_gather_(s);
  }
  for (const torch::Tensor& flat : each.memory)
    ops::restore(flat);
  each.state = State::kGathering;
  try {
    for (const size_t s : each.segments) {
      const FlatSegment& segment = memory_->all_segments()[s];
      each.works.push_back(segment.first_param->group->all_gather(
          segment.weight, segment.weight_shard));
    }
  } catch (const std::exception& error) {
    give_up(index, error);
  }
}

void ShardedWeights::wait(int index) {
  Unit& each = unit(index);
  if (each.state != State::kGathering)
    return;
  try {
    for (const WorkPtr& work : each.works)
      work->wait();
  } catch (const std::exception& error) {
    give_up(index, error);
  }
  each.works.clear();
  each.state = State::kWhole;
}

// Gives up a gather that failed; the next use begins a new one.
void ShardedWeights::give_up(int index, const std::exception& error) {
  drop_works(unit(index));
  free(index);
  rethrow_from(
      fmt::format(
          "[data_parallel] gathering the weights of unit {} of {} ({} ...)",
          index,
          units(),
          memory_->all_segments()[unit(index).segments.front()]
              .first_param->name),
      error);
}

void ShardedWeights::drop_works(Unit& each) {
  for (const WorkPtr& work : each.works) {
    try {
      work->wait();
    } catch (const std::exception&) {
      // It was reported to the caller that waited.
    }
  }
  each.works.clear();
}

void ShardedWeights::free(int index) {
  Unit& each = unit(index);
  for (const torch::Tensor& flat : each.memory)
    ops::release(flat);
  each.state = State::kReleased;
}

// Blocks of a uniform model have weights of the same size: the memory pages of
// a freed unit are moved to the next one.
void ShardedWeights::take_over_memory(std::span<const int> freed, int index) {
  for (const torch::Tensor& to : unit(index).memory) {
    if (to.numel() == 0 || !ops::is_released(to))
      continue;
    for (const int from_index : freed) {
      for (const torch::Tensor& from : unit(from_index).memory) {
        if (!ops::is_released(from) && ops::is_released(to) &&
            from.nbytes() == to.nbytes())
          ops::move_memory(from, to);
      }
    }
  }
}

void ShardedWeights::hold(int index) {
  const at::DisableRecordFunctionGuard unobserved;
  launch(index);
  wait(index);
  ++unit(index).holders;
}

void ShardedWeights::let_go(int index) {
  Unit& each = unit(index);
  if (each.holders == 0) {
    throw UsageError(fmt::format(
        "[data_parallel] let_go({}): nobody holds that unit; call hold() first",
        index));
  }
  if (--each.holders == 0 && index != std::get<1>(place_))
    free(index);
}

bool ShardedWeights::is_held() const {
  return std::any_of(units_.begin(), units_.end(), [](const Unit& each) {
    return each.holders > 0;
  });
}

bool ShardedWeights::keep_changes(int index) {
  const at::DisableRecordFunctionGuard unobserved;
  const torch::NoGradGuard no_grad;
  bool is_any = false;
  for (const size_t s : unit(index).segments) {
    const FlatSegment& segment = memory_->all_segments()[s];
    const auto owned =
        segment.weight.narrow(0, segment.owned.begin, segment.owned.numel);
    if (torch::equal(owned, segment.weight_shard))
      continue;
    segment.weight_shard.copy_(owned);
    ++kept_changes_;
    is_any = is_any || segment.first_param->tensor.requires_grad();
  }
  return is_any;
}

void ShardedWeights::add_to(
    const std::string& name,
    const torch::Tensor& change) {
  const at::DisableRecordFunctionGuard unobserved;
  const torch::NoGradGuard no_grad;
  BRIGADE_ASSERT(!is_held(), "a unit is held while '{}' is changed", name);
  bool is_found = false;
  for (const FlatSegment& segment : memory_->all_segments()) {
    for (const RunPart& slot : segment.slots) {
      if (params()[static_cast<size_t>(slot.param)].name != name)
        continue;
      is_found = true;
      const int64_t end = segment.owned.begin + segment.owned.numel;
      const int64_t first = std::max(slot.offset, segment.owned.begin);
      const int64_t last = std::min(slot.offset + slot.numel, end);
      if (first < last)
        segment.weight_shard
            .narrow(0, first - segment.owned.begin, last - first)
            .add_(
                change.flatten().narrow(0, first - slot.offset, last - first));
    }
  }
  BRIGADE_ASSERT(is_found, "'{}' is not in the flat weights", name);
}

int64_t ShardedWeights::version() const {
  int64_t sum = -kept_changes_;
  for (const FlatSegment& segment : memory_->all_segments())
    sum += static_cast<int64_t>(segment.weight_shard._version());
  return sum;
}

void ShardedWeights::throw_if_written() const {
  if (is_held())
    return;
  for (const Param& param : params()) {
    if (static_cast<int64_t>(param.tensor._version()) !=
        param.accepted_version) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' was written in place, but with sharding = "
          "parameters no rank keeps what is written there (as an embedding's "
          "max_norm does in forward): change weights while a "
          "brigade::FullWeights lives",
          param.name));
    }
  }
}

void ShardedWeights::accept_writes() {
  for (Param& param : memory_->params())
    param.accepted_version = static_cast<int64_t>(param.tensor._version());
}

// ---- what others ask

std::vector<std::pair<const void*, int>> ShardedWeights::storages() const {
  return {unit_of_storage_.begin(), unit_of_storage_.end()};
}

void ShardedWeights::fail_later(std::exception_ptr error) {
  if (failure_ == nullptr)
    failure_ = std::move(error);
}

void ShardedWeights::throw_if_failed() {
  if (failure_ != nullptr)
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ShardedWeights::fill_with_nan(int index) {
  Unit& each = unit(index);
  if (each.state != State::kReleased)
    return;
  const at::DisableRecordFunctionGuard unobserved;
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& flat : each.memory) {
    ops::restore(flat);
    flat.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  for (const size_t s : each.segments) {
    const FlatSegment& segment = memory_->all_segments()[s];
    segment.weight.narrow(0, segment.owned.begin, segment.owned.numel)
        .copy_(segment.weight_shard);
  }
  each.state = State::kNan;
}

}  // namespace brigade
