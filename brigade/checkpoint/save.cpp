#include "brigade/checkpoint/save.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/comm/device_stream.h"
#include "brigade/files/replace_directory.h"
#include "brigade/ops/split_master.h"
#include "brigade/safetensors/writer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

SafetensorsDtype dtype_of(const State& part) {
  if (part.master_low.defined())
    return SafetensorsDtype::kF32;
  switch (part.tensor.scalar_type()) {
    case torch::kFloat:
      return SafetensorsDtype::kF32;
    case torch::kBFloat16:
      return SafetensorsDtype::kBF16;
    case torch::kChar:
      return SafetensorsDtype::kI8;
    case torch::kByte:
      return SafetensorsDtype::kU8;
    default:
      BRIGADE_ASSERT(
          false, "checkpoint of {}", c10::toString(part.tensor.scalar_type()));
  }
  return SafetensorsDtype::kF32;
}

torch::Tensor data_of(const State& part) {
  const auto tensor = without_padding(part, part.tensor).contiguous();
  if (!part.master_low.defined())
    return tensor;
  const auto low = without_padding(part, part.master_low).contiguous();
  return ops::join_master(tensor.to(low.device()), low);
}

bool is_scales(const State& part, const std::string& stored) {
  return part.scales.defined() && stored.starts_with(kScalesPrefix);
}

// One tensor after the other, so that what is made for the file alone (masters,
// parts that are not contiguous) never exists all at once.
FileDigest write_parts(
    const fs::path& path,
    const std::vector<State>& parts,
    const CheckpointManifest& manifest) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const State*> by_name;
  json pieces = json::object();
  const auto add_scales = [&](const State& part) {
    const std::string name = kScalesPrefix + part.name;
    specs.push_back(
        {name,
         SafetensorsDtype::kF32,
         {static_cast<uint64_t>(stored_scales(part).numel())}});
    by_name[name] = &part;
  };
  for (const State& part : parts) {
    const std::string name =
        part.scales.defined() ? kCodesPrefix + part.name : part.name;
    if (part.scales.defined())
      add_scales(part);
    if (const Slice& slice = part.slice; slice.dim != kNotCut)
      pieces[name] = {slice.dim, slice.begin, slice.end};
    TensorSpec spec{name, dtype_of(part), {}};
    // Named, since its sizes live as long as it does.
    const torch::Tensor stored = without_padding(part, part.tensor);
    for (const int64_t size : stored.sizes())
      spec.shape.push_back(static_cast<uint64_t>(size));
    specs.push_back(std::move(spec));
    by_name[name] = &part;
  }
  BRIGADE_ASSERT(by_name.size() == specs.size(), "a tensor's name is repeated");
  SafetensorsMetadata metadata = kPyTorchMetadata;
  if (!pieces.empty())
    metadata[kPiecesKey] = pieces.dump();
  metadata[kRunKey] = manifest.run;
  metadata[kStepKey] = std::to_string(manifest.step);
  SafetensorsWriter writer(path, std::move(specs), metadata, Digest::kSha256);
  for (const TensorSpec& spec : writer.order()) {
    const State& part = *by_name.at(spec.name);
    const torch::Tensor data = to_host(
        is_scales(part, spec.name) ? stored_scales(part).contiguous()
                                   : data_of(part));
    writer.write_next(
        {static_cast<const std::byte*>(data.data_ptr()), data.nbytes()});
  }
  writer.commit();
  return writer.digest();
}

std::string file_name(const char* kind, int64_t writer, int64_t writers) {
  return writers == 1 ? fmt::format("{}.safetensors", kind)
                      : fmt::format("{}-rank-{}.safetensors", kind, writer);
}

json to_json(const std::map<std::string, FileDigest>& contents) {
  json result = json::object();
  for (const auto& [name, digest] : contents)
    result[name] = {digest.size_bytes, digest.sha256};
  return result;
}

// Why a save failed, as all ranks will tell it.
struct SaveFailure {
  std::string text;
};

constexpr const char* kFailed = "failed";  // of a note
constexpr const char* kSaid = "said";      // the same: by after_commit

void throw_if_failed(const json& note) {
  if (note.contains(kFailed))
    throw SaveFailure{note[kFailed].get<std::string>()};
}

// One rank's part of a save. Each phase leaves a note for the others: what it
// did or why it failed.
class Save {
 public:
  Save(fs::path directory, CheckpointToSave checkpoint, const SaveRanks& ranks)
      : directory_(std::move(directory)),
        temporary_(with_suffix(directory_, ".tmp")),
        checkpoint_(std::move(checkpoint)),
        ranks_(ranks) {}

  // Returns what after_commit did.
  std::string run() {
    try {
      begin();
      write_share();
      return end();
    } catch (...) {
      if (leads()) {
        std::error_code ignored;
        fs::remove_all(temporary_, ignored);
      }
      throw;
    }
  }

 private:
  bool leads() const { return ranks_.rank == 0; }

  // Rank 0 makes DIR.tmp.
  void begin() {
    json note;
    if (leads()) {
      note = attempt([&] {
        fs::remove_all(temporary_);
        fs::create_directories(temporary_);
        return to_json(copy_attachments());
      });
      leave("begin", note);
    } else {
      note = await("begin");
    }
    throw_if_failed(note);
    add_contents(note);
  }

  // Each writer writes its files.
  void write_share() {
    if (ranks_.writer < 0)
      return;
    const json note = attempt([&] {
      std::map<std::string, FileDigest> written;
      const auto write = [&](const char* kind,
                             const std::vector<State>& parts) {
        const std::string name =
            file_name(kind, ranks_.writer, checkpoint_.manifest.writers);
        written[name] =
            write_parts(temporary_ / name, parts, checkpoint_.manifest);
      };
      write(kWeightsFile, checkpoint_.weights);
      write(kOptimizerFile, checkpoint_.optimizer);
      return to_json(written);
    });
    leave(fmt::format("part-{}", ranks_.writer), note);
  }

  // Rank 0 waits for all of them and makes the checkpoint visible.
  std::string end() {
    json note;
    if (leads()) {
      note = attempt([&] { return json{{kSaid, commit()}}; });
      leave("end", note);
    } else {
      note = await("end");
    }
    throw_if_failed(note);
    return note.at(kSaid).get<std::string>();
  }

  // Returns what after_commit does.
  std::string commit() {
    CheckpointManifest& manifest = checkpoint_.manifest;
    // All of them before any failure counts: nobody still writes into DIR.tmp
    // when it is removed.
    std::vector<json> notes;
    for (int64_t writer = 0; writer < manifest.writers; ++writer)
      notes.push_back(await(fmt::format("part-{}", writer)));
    for (int64_t writer = 0; writer < manifest.writers; ++writer) {
      const json& note = notes[static_cast<size_t>(writer)];
      throw_if_failed(note);
      add_contents(note);
      for (const char* kind : {kWeightsFile, kOptimizerFile})
        manifest.files.push_back(file_name(kind, writer, manifest.writers));
    }
    write_text_file(temporary_ / kManifestFile, manifest_to_text(manifest));
    sync_directory(temporary_);
    replace_directory(temporary_, directory_);
    return checkpoint_.after_commit ? checkpoint_.after_commit() : "";
  }

  std::map<std::string, FileDigest> copy_attachments() const {
    std::map<std::string, FileDigest> copied;
    for (const auto& [source, name] : checkpoint_.attachments) {
      const fs::path target = temporary_ / name;
      fs::create_directories(target.parent_path());
      AtomicFile file(target, Digest::kSha256);
      file.write(read_text_file(source));
      file.commit();
      copied[name] = file.digest();
    }
    return copied;
  }

  void add_contents(const json& note) {
    for (const auto& [name, digest] : note.items())
      checkpoint_.manifest.contents[name] = {
          digest[0].get<uint64_t>(), digest[1].get<std::string>()};
  }

  // What `phase` returns, or a note of its failure.
  template <typename Phase>
  json attempt(const Phase& phase) {
    try {
      return phase();
    } catch (const SaveFailure& failure) {
      return {{kFailed, failure.text}};
    } catch (const fs::filesystem_error& error) {
      return failed(fmt::format(
          "[checkpoint] cannot write '{}': {}",
          error.path1().string(),
          error.code().message()));
    } catch (const std::exception& error) {
      return failed(error.what());
    }
  }

  json failed(const std::string& reason) const {
    return {
        {kFailed,
         ranks_.world_size == 1
             ? reason
             : fmt::format("rank {}: {}", ranks_.rank, reason)}};
  }

  void leave(const std::string& key, const json& note) {
    if (ranks_.store)
      ranks_.store->set(ranks_.save_key + "/" + key, note.dump());
    else
      notes_[key] = note;
  }

  // The note of another rank, or of this one.
  json await(const std::string& key) {
    if (!ranks_.store)
      return notes_.at(key);
    const std::string full = ranks_.save_key + "/" + key;
    auto pause = std::chrono::milliseconds(1);
    constexpr std::chrono::milliseconds kLongestPause{50};
    while (!ranks_.store->contains(full)) {
      if (ranks_.cancelled != nullptr && *ranks_.cancelled)
        throw SaveFailure{"[checkpoint] the save was given up"};
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
    return json::parse(ranks_.store->get(full));
  }

  fs::path directory_;
  fs::path temporary_;
  CheckpointToSave checkpoint_;
  const SaveRanks& ranks_;
  std::map<std::string, json> notes_;  // where there is no store
};

}  // namespace

std::string save_checkpoint(
    const fs::path& directory,
    CheckpointToSave checkpoint,
    const SaveRanks& ranks) {
  try {
    return Save(directory, std::move(checkpoint), ranks).run();
  } catch (const SaveFailure& failure) {
    throw StorageError(failure.text);
  }
}

}  // namespace brigade
