#include "brigade/metrics/prometheus.h"

#include <fmt/format.h>

namespace brigade {
namespace {

// A label's value: backslash, quote and line end are escaped (Prometheus,
// "Exposition formats").
std::string label(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n')
      result += "\\n";
    else if (c == '\\' || c == '"')
      result += std::string("\\") + c;
    else
      result += c;
  }
  return result;
}

}  // namespace

std::string prometheus_text(
    const StepMetrics& metrics,
    const std::string& run_name) {
  const std::string run = label(run_name);
  std::string text;
  const auto add = [&](const char* name, const char* help, double value) {
    text += fmt::format(
        "# HELP brigade_{0} {1}\n# TYPE brigade_{0} gauge\n"
        "brigade_{0}{{run=\"{2}\"}} {3}\n",
        name,
        help,
        run,
        value);
  };
  add("step", "Steps so far.", static_cast<double>(metrics.step));
  add("loss", "Mean loss of the step, nats per token.", metrics.loss);
  add("learning_rate", "Of the step.", metrics.lr);
  add("gradient_norm", "Before clipping.", metrics.grad_norm);
  add("tokens", "Trained on so far.", static_cast<double>(metrics.tokens));
  add("tokens_per_second", "Of all ranks.", metrics.tokens_per_second);
  add("mfu_percent", "Model FLOPs utilisation.", metrics.mfu);
  add("memory_bytes", "Of the largest rank.", metrics.memory_gb * 1e9);
  add("step_seconds", "Of the step.", metrics.step_ms / 1e3);
  add("exposed_communication_seconds",
      "Waited for gradients and neighbours.",
      metrics.exposed_comm_ms / 1e3);
  add("skipped_steps",
      "Not finite, so far.",
      static_cast<double>(metrics.skipped_steps));
  if (metrics.eval_loss)
    add("evaluation_loss", "On held-out text.", *metrics.eval_loss);
  return text;
}

}  // namespace brigade
