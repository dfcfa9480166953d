#include <fmt/format.h>

#include <map>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/checkpoint_pieces.h"
#include "brigade/files/file.h"
#include "brigade/ops/split_master.h"
#include "brigade/safetensors/writer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

SafetensorsDtype dtype_of(const TensorPart& part) {
  if (part.master_low.defined())
    return SafetensorsDtype::kF32;
  switch (part.tensor.scalar_type()) {
    case torch::kFloat:
      return SafetensorsDtype::kF32;
    case torch::kBFloat16:
      return SafetensorsDtype::kBF16;
    default:
      BRIGADE_ASSERT(
          false, "checkpoint of {}", c10::toString(part.tensor.scalar_type()));
  }
  return SafetensorsDtype::kF32;
}

// Without padding.
torch::Tensor stored_part(const TensorPart& part, const torch::Tensor& tensor) {
  return part.dim < 0
             ? tensor.detach()
             : tensor.detach().narrow(part.dim, 0, part.end - part.begin);
}

torch::Tensor data_of(const TensorPart& part) {
  const auto tensor = stored_part(part, part.tensor).contiguous();
  if (!part.master_low.defined())
    return tensor;
  return ops::join_master(
      tensor, stored_part(part, part.master_low).contiguous());
}

// One tensor after the other, so that what is made for the file alone (masters,
// parts that are not contiguous) never exists all at once.
void write_parts(const fs::path& path, const std::vector<TensorPart>& parts) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const TensorPart*> by_name;
  nlohmann::json pieces = nlohmann::json::object();
  for (const TensorPart& part : parts) {
    if (part.dim >= 0)
      pieces[part.name] = {part.dim, part.begin, part.end};
    TensorSpec spec{part.name, dtype_of(part), {}};
    for (const int64_t size : stored_part(part, part.tensor).sizes())
      spec.shape.push_back(static_cast<uint64_t>(size));
    specs.push_back(std::move(spec));
    by_name[part.name] = &part;
  }
  BRIGADE_ASSERT(by_name.size() == parts.size(), "a tensor's name is repeated");
  SafetensorsMetadata metadata = kPyTorchMetadata;
  if (!pieces.empty())
    metadata[kPiecesKey] = pieces.dump();
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.order()) {
    const torch::Tensor data = data_of(*by_name.at(spec.name));
    writer.write_next(
        {static_cast<const std::byte*>(data.data_ptr()), data.nbytes()});
  }
  writer.commit();
}

std::string file_name(const char* kind, int64_t writer, int64_t writers) {
  return writers == 1 ? fmt::format("{}.safetensors", kind)
                      : fmt::format("{}-rank-{}.safetensors", kind, writer);
}

// What std::filesystem throws is a StorageError to our callers.
template <typename Function>
void on_disk(const fs::path& path, const Function& function) {
  try {
    function();
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format(
        "[checkpoint] cannot write '{}': {}",
        path.string(),
        error.code().message()));
  }
}

// Runs `function` on this rank and fails on all ranks if it failed on one.
template <typename Function>
void together(Communicator& world, const fs::path& path, Function&& function) {
  std::string failure;
  try {
    on_disk(path, function);
  } catch (const StorageError& error) {
    failure = error.what();
  }
  auto failed = torch::full({1}, failure.empty() ? 0 : 1, torch::kLong);
  world.all_reduce(failed)->wait();
  if (failed.item<int64_t>() == 0)
    return;
  throw StorageError(
      failure.empty() ? fmt::format(
                            "[checkpoint] another rank could not write its "
                            "part of '{}'",
                            path.string())
                      : failure);
}

}  // namespace

void save_checkpoint(
    const fs::path& directory,
    CheckpointToSave checkpoint,
    int writer,
    Communicator& world) {
  const fs::path temporary = directory.string() + ".tmp";
  CheckpointManifest& manifest = checkpoint.manifest;
  for (int64_t i = 0; i < manifest.writers; ++i) {
    manifest.files.push_back(file_name("model", i, manifest.writers));
    manifest.files.push_back(file_name("optimizer", i, manifest.writers));
  }
  const bool leads = world.rank() == 0;
  try {
    together(world, temporary, [&] {
      if (!leads)
        return;
      fs::remove_all(temporary);
      fs::create_directories(temporary);
      for (const auto& [source, name] : checkpoint.attachments) {
        fs::create_directories((temporary / name).parent_path());
        fs::copy_file(source, temporary / name);
      }
    });
    together(world, temporary, [&] {
      if (writer < 0)
        return;
      write_parts(
          temporary / file_name("model", writer, manifest.writers),
          checkpoint.weights);
      write_parts(
          temporary / file_name("optimizer", writer, manifest.writers),
          checkpoint.optimizer);
    });
    together(world, directory, [&] {
      if (!leads)
        return;
      write_text_file(
          temporary / kManifestFile, manifest_to_json(manifest).dump(2));
      sync_directory(temporary);
      fs::remove_all(directory);
      fs::rename(temporary, directory);
      sync_directory(directory.parent_path());
    });
  } catch (const StorageError&) {
    std::error_code ignored;
    if (leads)
      fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace brigade
