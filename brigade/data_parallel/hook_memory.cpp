#include "brigade/data_parallel/hook_memory.h"

#include <fmt/format.h>

#include <set>

#include "brigade/base/error.h"

namespace brigade {

std::vector<KeptTensor> HookMemory::tensors() const {
  std::vector<KeptTensor> result;
  for (const auto& weak : buckets_) {
    if (const auto bucket = weak.lock()) {
      for (KeptTensor& kept : bucket->kept())
        result.push_back(std::move(kept));
    }
  }
  for (const auto& [key, tensor] : restored_)
    result.push_back({key.first, key.second, tensor});
  return result;
}

void HookMemory::restore(KeptTensor kept) {
  restored_[{kept.kind, kept.param}] = kept.tensor;
}

void HookMemory::refuse_another_model(const KeptOfBucket& bucket) const {
  std::set<std::string> names;
  for (const KeptTensor& kept : bucket.kept())
    names.insert(kept.param);
  for (const auto& weak : buckets_) {
    const auto other = weak.lock();
    if (!other)
      continue;
    for (const KeptTensor& kept : other->kept()) {
      if (names.contains(kept.param)) {
        throw ConfigError(fmt::format(
            "[data_parallel] one hook with a HookMemory reduces '{}' of two "
            "models: give each model, and each rank that is a thread, a hook "
            "and a memory of its own",
            kept.param));
      }
    }
  }
}

void HookMemory::add(const std::shared_ptr<KeptOfBucket>& bucket) {
  std::erase_if(buckets_, [](const auto& weak) { return weak.expired(); });
  refuse_another_model(*bucket);
  buckets_.push_back(bucket);
  const torch::NoGradGuard no_grad;
  for (KeptTensor& kept : bucket->kept()) {
    const auto found = restored_.find({kept.kind, kept.param});
    if (found == restored_.end())
      continue;
    if (found->second.numel() != kept.tensor.numel()) {
      throw DataError(fmt::format(
          "[data_parallel] '{}' of '{}' that was restored has {} elements: "
          "expected {}",
          kept.kind,
          kept.param,
          found->second.numel(),
          kept.tensor.numel()));
    }
    kept.tensor.copy_(found->second.view(kept.tensor.sizes()));
    restored_.erase(found);
  }
}

}  // namespace brigade
