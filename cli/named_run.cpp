#include "cli/named_run.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/python_json.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/manifest.h"
#include "brigade/safetensors/folder.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const fs::path& path) {
  const std::string text = read_text_file(path);
  return parse_python_json(text, {.module = "model", .file = path.string()});
}

// Where the run that wrote the checkpoint had its folder; "": not recorded.
fs::path recorded_run(const fs::path& checkpoint) {
  const json manifest = read_json(checkpoint / kManifestFile);
  const json::json_pointer place("/config/logging/run_dir");
  return manifest.contains(place) && manifest.at(place).is_string()
             ? fs::path(manifest.at(place).get<std::string>())
             : fs::path();
}

bool is_run(const fs::path& path) {
  return has_file(RunFolder{path}.metrics());
}

}  // namespace

bool is_hugging_face(const fs::path& path) {
  return is_model_folder(path) && !is_run(path);
}

fs::path find_run(const fs::path& path) {
  const auto checkpoint = is_run(path) ? std::nullopt : find_checkpoint(path);
  if (checkpoint) {
    // RUN/checkpoints/STEP, unless checkpoint.save_dir says otherwise.
    const fs::path above =
        fs::absolute(*checkpoint).lexically_normal() / ".." / "..";
    for (const fs::path& run :
         {above.lexically_normal(), recorded_run(*checkpoint)}) {
      if (is_run(run))
        return run;
    }
  }
  if (is_hugging_face(path))
    throw ConfigError(fmt::format(
        "[run] '{}' is a Hugging Face folder: no run of Brigade wrote it, so "
        "there are no steps to show",
        path.string()));
  return path;
}

NamedModelConfig read_model_config(const fs::path& path) {
  if (const auto checkpoint = find_checkpoint(path)) {
    const fs::path file = *checkpoint / kManifestFile;
    const json manifest = read_json(file);
    return {
        manifest.is_object() ? manifest.value("model", json()) : json(),
        file.string() + ": /model"};
  }
  const fs::path file = path / "config.json";
  return {read_json(file), file.string() + ": "};
}

}  // namespace brigade::cli
