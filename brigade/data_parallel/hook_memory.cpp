#include "brigade/data_parallel/hook_memory.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {

std::vector<State> HookMemory::tensors() const {
  std::vector<State> result;
  for (const auto& weak : buckets_) {
    if (const auto bucket = weak.lock())
      result.insert(result.end(), bucket->kept.begin(), bucket->kept.end());
  }
  for (const auto& [name, tensor] : restored_)
    result.push_back({name, tensor});
  return result;
}

void HookMemory::drop_errors() {
  for (State& kept : tensors()) {
    if (kept.name.starts_with("errors."))
      kept.tensor.zero_();
  }
}

void HookMemory::restore(State kept) {
  restored_[kept.name] = std::move(kept.tensor);
}

void HookMemory::refuse_another_model(const KeptOfBucket& bucket) const {
  std::set<std::string> names;
  for (const State& kept : bucket.kept)
    names.insert(kept.name);
  for (const auto& weak : buckets_) {
    const auto other = weak.lock();
    if (!other)
      continue;
    for (const State& kept : other->kept) {
      if (names.contains(kept.name)) {
        throw UsageError(fmt::format(
            "[data_parallel] one hook with a HookMemory reduces '{}' of two "
            "models: give each model, and each rank that is a thread, a hook "
            "and a memory of its own",
            kept.name.substr(kept.name.find('.') + 1)));
      }
    }
  }
}

void HookMemory::add(const std::shared_ptr<KeptOfBucket>& bucket) {
  std::erase_if(buckets_, [](const auto& weak) { return weak.expired(); });
  refuse_another_model(*bucket);
  buckets_.push_back(bucket);
  const torch::NoGradGuard no_grad;
  for (const State& kept : bucket->kept) {
    const auto found = restored_.find(kept.name);
    if (found == restored_.end())
      continue;
    if (found->second.numel() != kept.tensor.numel()) {
      throw DataError(fmt::format(
          "[data_parallel] '{}' that was restored has {} elements: expected {}",
          kept.name,
          found->second.numel(),
          kept.tensor.numel()));
    }
    torch::Tensor(kept.tensor).copy_(found->second.view(kept.tensor.sizes()));
    restored_.erase(found);
  }
}

}  // namespace brigade
