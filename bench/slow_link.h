// Two hosts on one machine: network namespaces joined by a virtual cable (veth)
// whose rate is limited in both directions (tc's token bucket filter). Made
// with iproute2, gone with the object. Needs root.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "brigade/base/error.h"

namespace brigade {

class SlowLink {
 public:
  // The name of a host's end of the cable.
  static constexpr const char* kInterface = "brigade0";

  // Why such a link is impossible here; empty where it is possible.
  static std::string why_not() {
    if (::geteuid() != 0)
      return "network namespaces need root";
    if (!succeeds("ip -V") || !succeeds("tc -V"))
      return "iproute2 (ip, tc) is not installed";
    const std::string name = fmt::format("brigade-probe-{}", ::getpid());
    if (!succeeds("ip netns add " + name))
      return "this machine allows no network namespaces";
    const bool has_filter = succeeds(fmt::format(
        "ip -n {0} link add brigade0 type veth peer name brigade1 && "
        "tc -n {0} qdisc add dev brigade0 root tbf rate 1gbit burst 256kb "
        "latency 50ms",
        name));
    succeeds("ip netns del " + name);
    return has_filter ? "" : "this machine allows no veth or no tc tbf";
  }

  explicit SlowLink(int megabits_per_second) {
    for (int host = 0; host < 2; ++host)
      run("ip netns add " + name_of(host));
    run(fmt::format(
        "ip link add {2} netns {0} type veth peer name {2} netns {1}",
        name_of(0),
        name_of(1),
        kInterface));
    for (int host = 0; host < 2; ++host) {
      const std::string name = name_of(host);
      run(fmt::format("ip -n {} link set lo up", name));
      run(fmt::format(
          "ip -n {} address add 10.213.7.{}/24 dev {}",
          name,
          host + 1,
          kInterface));
      run(fmt::format("ip -n {} link set {} up", name, kInterface));
      run(fmt::format(
          "tc -n {} qdisc add dev {} root tbf rate {}mbit burst 256kb latency "
          "50ms",
          name,
          kInterface,
          megabits_per_second));
    }
  }
  ~SlowLink() {
    for (int host = 0; host < 2; ++host)
      succeeds("ip netns del " + name_of(host));
  }
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  // Bytes that the host has sent over the cable so far, headers included.
  int64_t sent_bytes(int host) const {
    const std::string command = fmt::format(
        "ip netns exec {} cat /sys/class/net/{}/statistics/tx_bytes",
        name_of(host),
        kInterface);
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr)
      throw StorageError("[bench] failed: " + command);
    long long bytes = 0;
    const int read = std::fscanf(pipe, "%lld", &bytes);
    if (::pclose(pipe) != 0 || read != 1)
      throw StorageError("[bench] failed: " + command);
    return bytes;
  }

  // A command that runs `command` on the host of its RANK.
  std::vector<std::string> on_host_of_rank(
      const std::vector<std::string>& command) const {
    std::vector<std::string> result{
        "/bin/sh",
        "-c",
        "exec ip netns exec " + prefix_ + "$RANK \"$@\"",
        "sh"};
    result.insert(result.end(), command.begin(), command.end());
    return result;
  }

 private:
  static bool succeeds(const std::string& command) {
    const int status = std::system(("(" + command + ") >&- 2>&-").c_str());
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  static void run(const std::string& command) {
    if (std::system(command.c_str()) != 0)
      throw StorageError("[bench] failed: " + command);
  }
  std::string name_of(int host) const { return prefix_ + std::to_string(host); }

  std::string prefix_ = fmt::format("brigade-{}-", ::getpid());
};

}  // namespace brigade
