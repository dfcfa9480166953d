// Writing a checkpoint: under DIR.tmp, every file synced, the manifest last,
// then DIR.tmp takes DIR's name in one step. At every instant DIR is absent,
// the checkpoint of before, or the new one.
//
// Ranks tell one another how far they are through notes in the store (Notes),
// not by collectives, so that they may save while they train.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "brigade/checkpoint/tensor_part.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"
#include "brigade/run/manifest.h"

namespace brigade {

struct CheckpointToSave {
  CheckpointManifest manifest;  // files and contents are filled in
  std::vector<State> weights;
  std::vector<State> optimizer;
  // Copied into DIR by rank 0: file -> name in DIR, "tokenizer/tokenizer.json".
  std::map<std::filesystem::path, std::string> attachments;
  // Called on rank 0 once DIR is there; empty: nothing. Returns what every rank
  // is to know of it, or "". What it throws is the save's failure, although DIR
  // stays.
  std::function<std::string()> after_commit;
};

// The ranks of a save, as each of them sees it.
struct SaveRanks {
  int rank = 0;
  int world_size = 1;
  // -1: this rank has nothing to store. The others are numbered 0 ...
  // manifest.writers - 1; rank 0 of the world need not be one of them.
  int writer = 0;
  StorePtr store;        // null for a world of one
  std::string save_key;  // one per save, the same on all ranks
  // Another thread sets it to give up waiting for other ranks.
  const std::atomic<bool>* cancelled = nullptr;
};

// Every rank calls it; returns once DIR is there, what after_commit returned.
// Throws the same StorageError on every rank when one of them could not write;
// it names that rank. What DIR held before is then unharmed, and DIR.tmp is
// removed.
std::string save_checkpoint(
    const std::filesystem::path& directory,
    CheckpointToSave checkpoint,
    const SaveRanks& ranks);

}  // namespace brigade
