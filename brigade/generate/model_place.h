#pragma once

#include <filesystem>

namespace brigade {

// Where StoredModel finds a model.
struct ModelPlace {
  std::filesystem::path path;  // as Checkpoint's, or a Hugging Face folder
  // A folder as AdapterFolder takes it; "": none but that of an adapter's run.
  std::filesystem::path adapter = {};
};

}  // namespace brigade
