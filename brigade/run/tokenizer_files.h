// The files of a tokenizer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace brigade {

struct FileToCopy {
  std::filesystem::path source;
  std::string name;  // in the folder
};

// The files of a tokenizer under the names by which transformers knows them:
// those of a folder that are there; a single file by its kind, FILE.json as
// tokenizer.json and FILE.model as tokenizer.model, with what describes it
// (tokenizer_config.json, special_tokens_map.json, ...) where it lies beside a
// file of such a name. `model`: a folder whose tokenizer, if it is the same,
// gives the descriptions that are missing, but no further chat templates beside
// a chat_template.jinja from elsewhere; may be empty.
// Throws DataError when there is nothing of the kind.
std::vector<FileToCopy> find_tokenizer_files(
    const std::filesystem::path& path,
    const std::filesystem::path& model = {});

}  // namespace brigade
