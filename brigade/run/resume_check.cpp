#include "brigade/run/resume_check.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/config/model_layout.h"
#include "brigade/data/dataset_info.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/files/digest.h"
#include "brigade/files/fingerprint.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/base_model.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/resume_rules.h"
#include "brigade/run/stored_checkpoint.h"
#include "brigade/run/tokenizer_files.h"

namespace brigade {

namespace fs = std::filesystem;

namespace {

// The digest of the folder's only file, as if it had been named; where there
// are several, one over their names and contents. Without the templates in
// kMoreChatTemplates, which the digests of older checkpoints do not have.
std::string sha256_of_tokenizer_folder(const fs::path& folder) {
  std::vector<FileToCopy> files = find_tokenizer_files(folder);
  std::erase_if(files, [](const FileToCopy& file) {
    return file.name.starts_with(kMoreChatTemplates);
  });
  if (files.size() == 1)
    return sha256_of_file(files.front().source);
  std::string text;
  for (const FileToCopy& file : files)
    text += fmt::format("{} {}\n", file.name, sha256_of_file(file.source));
  return sha256_of_text(text);
}

// The newest checkpoint of the folder whose files are there and whole by their
// headers.
std::optional<StoredCheckpoint> newest_checkpoint(const fs::path& folder) {
  const auto checkpoints = list_checkpoints(folder);
  for (size_t i = checkpoints.size(); i-- > 0;) {
    try {
      return StoredCheckpoint(checkpoints[i].directory);
    } catch (const DataError&) {
    }
  }
  return std::nullopt;
}

}  // namespace

std::string find_tokenizer(const TrainConfig& config) {
  if (config.dataset.text)
    return tokenizer_of_text(config);
  if (!config.dataset.tokenizer.empty())
    return config.dataset.tokenizer;
  const std::string dataset = config.dataset.mixture.empty()
                                  ? config.dataset.name
                                  : config.dataset.mixture.front().name;
  const auto info = read_dataset_info(dataset_prefix(dataset));
  if (info && !info->tokenizer.empty())
    return info->tokenizer;
  return find_tokenizer_file(config.model.folder).string();
}

nlohmann::json describe_data(
    const TrainConfig& config,
    const TrainingData& data) {
  nlohmann::json described = nlohmann::json::object();
  // Text that is tokenized while training goes on has no number of tokens yet.
  if (data.text_bytes > 0)
    described["text_bytes"] = data.text_bytes;
  else
    described["num_tokens"] = data.num_tokens;
  if (data.counting_tokens)
    described["counting_tokens"] = *data.counting_tokens;
  if (config.training.loss.needs_reference())
    described["reference_sha256"] =
        sha256_of_file(reference_path(config.dataset.name));
  if (!config.dataset.teacher.empty())
    described["teacher"] = fingerprint_of_file(config.dataset.teacher);
  if (config.adapter.is_used())
    described["base_model"] = fingerprint_of_weights(config.model.folder);
  const fs::path tokenizer = find_tokenizer(config);
  if (tokenizer == "bytes") {
    described["tokenizer_sha256"] = "bytes";
  } else if (fs::is_regular_file(tokenizer)) {
    described["tokenizer_sha256"] = sha256_of_file(tokenizer);
  } else if (fs::is_directory(tokenizer)) {
    described["tokenizer_sha256"] = sha256_of_tokenizer_folder(tokenizer);
  }
  return described;
}

LrEnd saved_lr_end(const fs::path& checkpoint) {
  const RunFacts facts =
      run_facts(read_manifest(checkpoint).config, nullptr, nullptr);
  const auto found = facts.trajectory.find("training.lr_end");
  return found != facts.trajectory.end() &&
                 found->second == to_string(LrEnd::kAfterLastStep)
             ? LrEnd::kAfterLastStep
             : LrEnd::kAtTotalTrainSteps;
}

void check_resume(
    const fs::path& checkpoint,
    const TrainConfig& config,
    const TrainingData& data,
    RunObserver& observer) {
  const CheckpointManifest manifest = read_manifest(checkpoint);
  if (!manifest.is_verifiable()) {
    observer.on_message(fmt::format(
        "'{}' was written by an older version, without SHA-256: its contents "
        "are not verified",
        checkpoint.string()));
  }
  RunFacts saved = run_facts(
      with_past_mixture(manifest.config, manifest.step, manifest.tokens),
      manifest.model,
      manifest.data);
  RunFacts now = run_facts(
      with_past_mixture(to_json(config), manifest.step, manifest.tokens),
      to_hugging_face_json(model_of(config), manifest.dtype),
      describe_data(config, data));
  if (!manifest.base_model.empty() && config.adapter.is_used()) {
    const auto place = [](const fs::path& path) {
      return fs::weakly_canonical(path).string();
    };
    constexpr const char* kBase = "model.name";  // that of the adapter's base
    saved.meaning[kBase] = place(manifest.base_model);
    now.meaning[kBase] = place(fs::absolute(config.model.folder));
  }
  const ResumeChanges changes = compare_runs(
      saved,
      now,
      config.checkpoint.allow_changes.value_or(std::vector<std::string>{}));
  if (!changes.refused.empty()) {
    std::vector<std::string> problems;
    for (const std::string& text : changes.refused) {
      const std::string key = text.substr(0, text.find_first_of(": "));
      problems.push_back(fmt::format(
          "[resume] '{}' is of another run: {}; put it back, or add \"{}\" to "
          "checkpoint.allow_changes to continue all the same",
          checkpoint.string(),
          text,
          key));
    }
    throw ConfigError(problems);
  }
  for (const std::string& text : changes.allowed)
    observer.on_message("changed by checkpoint.allow_changes: " + text);
  for (const std::string& text : changes.trajectory)
    observer.on_message("changed: " + text);
}

std::optional<CheckpointManifest> check_named_checkpoint(
    const TrainConfig& config,
    const TrainingData& data) {
  const std::string& path = config.checkpoint.load_path;
  if (path.empty())
    return std::nullopt;
  const auto stored = path == "auto"
                          ? newest_checkpoint(checkpoint_folder(config))
                          : StoredCheckpoint(path);
  if (!stored)
    return std::nullopt;
  RunObserver silent;
  check_resume(stored->directory(), config, data, silent);
  return stored->manifest();
}

}  // namespace brigade
