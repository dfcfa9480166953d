// A training run on disk, whole or absent:
//   DIR/manifest.json                    what it is, written last (manifest.h)
//   DIR/model[-rank-K].safetensors       weights, Hugging Face's names
//   DIR/optimizer[-rank-K].safetensors   STATE.NAME of the optimizer's states
//   DIR/...                              files that came with it (tokenizer)
//
// Each tensor is stored in the pieces in which ranks held it, with the place of
// each piece in the whole tensor, so that a run may continue under another
// layout: a rank reads what overlaps with its own part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/shard.h"
#include "brigade/run/manifest.h"
#include "brigade/safetensors/safetensors.h"

namespace brigade {

// A stored tensor, its pieces put together.
struct CheckpointTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t size_bytes = 0;
  int pieces = 1;
  bool is_whole = true;   // no part is missing
  bool is_state = false;  // the optimizer's, by the file it is in
};

// What a checkpoint on disk holds. Validates the manifest, the size and the
// header of every file, and that all files belong to the manifest's run and
// step; find_damage() verifies the contents.
class StoredCheckpoint {
 public:
  // `path`: as find_checkpoint_directory() takes it. Throws DataError naming
  // what is wrong or missing.
  explicit StoredCheckpoint(const std::filesystem::path& path);

  const std::filesystem::path& directory() const { return directory_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  // The model in the manifest. Throws DataError, "[`module`] FILE: /model/...".
  DecoderConfig model(const char* module) const;
  // As load_tokenizer() takes it, which the checkpoint may hold; "": none.
  std::string tokenizer() const;
  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;
  // What is stored, in the order of names().
  std::vector<CheckpointTensor> tensors() const;

 protected:
  // A stored part of a tensor.
  struct Piece {
    const SafetensorsTensor* stored = nullptr;
    const SafetensorsTensor* scales = nullptr;  // where those are codes
    bool is_state = false;
    Slice slice;  // of the whole tensor
  };
  // The pieces of a tensor, in its order. Throws DataError if there are none.
  const std::vector<Piece>& pieces_of(const std::string& name) const;

 private:
  void check_file(const SafetensorsFile& file) const;
  void add_pieces(const SafetensorsFile& file);

  std::filesystem::path directory_;
  CheckpointManifest manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace brigade
