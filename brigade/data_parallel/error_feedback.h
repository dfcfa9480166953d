// Shared by the hooks with error feedback: they keep what compression loses and
// add it to the next step's gradients.
#pragma once

#include <c10/core/Storage.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/hook_memory.h"

namespace brigade {

// Throws UsageError naming the hook if only a part of the bucket's sum is
// asked for, since errors are of whole buckets, or if the bucket is not in the
// host's memory, in which gradients are compressed.
void check_can_compress(const BucketView& bucket, const char* hook);

// Where a parameter's gradient begins in its bucket, in elements.
int64_t offset_in_bucket(const BucketView& bucket, size_t param);

// A hook's states, by bucket, each a KeptOfBucket. One hook may serve several
// models, also those of ranks that are threads; a newly planned bucket has a
// new state.
template <typename State>
class StateOfBuckets {
 public:
  // `memory` learns of each state; null: none does.
  explicit StateOfBuckets(HookMemoryPtr memory) : memory_(std::move(memory)) {}

  // The bucket's state; a new one is made of the bucket and `args`.
  template <typename... Args>
  std::shared_ptr<State> of(const BucketView& bucket, const Args&... args) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[{
        bucket.main_grad.storage().unsafeGetStorageImpl(),
        bucket.main_grad.storage_offset()}];
    if (entry.state && !entry.memory.expired() && entry.names == bucket.names)
      return entry.state;
    std::erase_if(entries_, [&](const auto& item) {
      return &item.second != &entry && item.second.memory.expired();
    });
    entry.memory = bucket.main_grad.storage().getWeakStorageImpl();
    entry.names = bucket.names;
    entry.state.reset();
    const auto made = std::make_shared<State>(bucket, args...);
    if (memory_)
      memory_->add(made);
    return entry.state = made;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory{
        c10::intrusive_ptr<c10::StorageImpl>()};
    std::vector<std::string> names;
    std::shared_ptr<State> state;
  };
  HookMemoryPtr memory_;
  std::mutex mutex_;
  // By the storage and offset of the bucket.
  std::map<std::pair<const c10::StorageImpl*, int64_t>, Entry> entries_;
};

}  // namespace brigade
