// The safetensors of a Hugging Face folder: model.safetensors, or the shards
// that model.safetensors.index.json names.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/safetensors/safetensors.h"

namespace brigade {

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";

// A Hugging Face folder: config.json and safetensors files (an index may name
// files in folders below alone), and no checkpoint, which has a manifest.json.
bool is_model_folder(const std::filesystem::path& folder);

// What the folder holds in place of such weights, and what to do: "; it holds
// pytorch_model.bin, ..."; "" where nothing is known.
std::string explain_missing_weights(const std::filesystem::path& folder);

// Tensor name -> file name. Throws DataError, naming file and tensor, when the
// index is not JSON with a weight_map of strings, names a tensor twice, or
// names a file outside of the index's own folder.
using WeightMap = std::map<std::string, std::string, std::less<>>;
WeightMap read_weight_map(const std::filesystem::path& index);
// The same from the index's text; `file_name` stands for it in messages.
WeightMap parse_weight_map(std::string_view text, const std::string& file_name);

// True when `name` is a plain file name, which cannot leave its folder.
bool is_bare_file_name(std::string_view name);
// True when `path` is relative and made of such names: it stays in its folder.
bool stays_in_folder(std::string_view path);

// All tensors of the folder by name. Every file is mapped and validated at
// construction, but no data is read. Immutable; may be read from several
// threads.
class SafetensorsFolder {
 public:
  // As in transformers: a single model.safetensors goes before an index; of an
  // index only the list of files counts, all their tensors are there, and one
  // that is in several is that of the last file by name. Throws DataError when
  // the folder has neither, and for a file that is absent or damaged.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::map<std::string, const SafetensorsTensor*, std::less<>>& tensors()
      const {
    return tensors_;
  }
  // nullptr when the folder does not hold it.
  const SafetensorsTensor* find(std::string_view name) const;

 private:
  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const SafetensorsTensor*, std::less<>> tensors_;

  void open_shards(const std::filesystem::path& index);
};

}  // namespace brigade
