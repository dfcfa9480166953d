#include "brigade/checkpoint/convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/save.h"
#include "brigade/checkpoint/verify.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// All files but those of tensors and the manifest.
std::map<fs::path, std::string> attachments_of(const Checkpoint& checkpoint) {
  std::map<fs::path, std::string> attachments;
  const auto& files = checkpoint.manifest().files;
  for (const auto& entry :
       fs::recursive_directory_iterator(checkpoint.directory())) {
    const std::string name =
        fs::relative(entry.path(), checkpoint.directory()).string();
    const bool is_ours =
        name == kManifestFile ||
        std::find(files.begin(), files.end(), name) != files.end();
    if (entry.is_regular_file() && !is_ours)
      attachments[entry.path()] = name;
  }
  return attachments;
}

}  // namespace

void convert_checkpoint(const fs::path& path, const fs::path& out) {
  if (fs::exists(out)) {
    throw ConfigError(fmt::format(
        "[convert] '{}' exists already; choose another directory",
        out.string()));
  }
  const Checkpoint checkpoint(path);
  const std::string reason =
      find_reason_to_reject(checkpoint.directory(), VerifyLevel::kFull);
  if (!reason.empty())
    throw DataError(reason);
  CheckpointToSave converted;
  converted.manifest = checkpoint.manifest();
  converted.manifest.files.clear();
  converted.manifest.contents.clear();
  converted.manifest.writers = 1;
  converted.attachments = attachments_of(checkpoint);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    State part{
        .name = tensor.name, .tensor = checkpoint.read_whole(tensor.name)};
    (tensor.is_state ? converted.optimizer : converted.weights)
        .push_back(std::move(part));
  }
  save_checkpoint(out, std::move(converted), SaveRanks{});
}

}  // namespace brigade
