// An observer that writes events.jsonl (metrics/run_events.h) and passes each
// call on.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "brigade/launch/environment.h"
#include "brigade/metrics/run_events.h"
#include "brigade/run/run_observer.h"

namespace brigade {

class RecordedRun : public RunObserver {
 public:
  // `inner` may be null. `origins`: where the config's values that are not
  // defaults come from, by key.
  RecordedRun(
      RunObserver* inner,
      const LaunchEnvironment& environment,
      std::map<std::string, std::string> origins);

  // The run folder is there; before it events wait. Throws StorageError.
  void open(const std::filesystem::path& path) { events_.open(path); }

  // Why an event could not be written; "": all were. It ends nothing by itself.
  const std::string& failure() const { return failure_; }

  void on_start(const RunStart& start) override;
  void on_step(const StepMetrics& metrics) override;
  void on_checkpoint(const std::filesystem::path& path) override;
  void on_message(const std::string& line) override;
  void on_progress(const RunProgress& progress) override;
  void on_end(const RunEnd& end) override;
  // The run ends with an exception of this text.
  void on_failure(const std::string& text) {
    record("failed", {{"text", text}});
  }

 private:
  void record(const char* event, const nlohmann::ordered_json& facts);

  RunObserver silent_;
  RunObserver& inner_;
  LaunchEnvironment environment_;
  std::map<std::string, std::string> origins_;
  RunEvents events_;
  std::string failure_;
};

}  // namespace brigade
