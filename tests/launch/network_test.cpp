#include "brigade/launch/network.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "brigade/base/error.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Two ranks on two machines that meet at `host`.
LaunchEnvironment across(const std::string& host) {
  return {
      .world_size = 2,
      .local_world_size = 1,
      .store = {.kind = StoreAddress::Kind::kTcp, .host = host, .port = 29500}};
}

std::string error_of(const LaunchEnvironment& environment) {
  return message_of<ConfigError>([&] { peer_address(environment); });
}

TEST(PeerAddress, IsTheLoopbackInterfaceOnOneMachine) {
  const auto address = peer_address({.world_size = 4, .local_world_size = 4});
  EXPECT_EQ(address.interface, "lo");
}

TEST(PeerAddress, IsTheOneOfTheRouteToTheMaster) {
  const auto v4 = peer_address(across("127.0.0.1"));
  EXPECT_EQ(v4.interface, "");
  EXPECT_EQ(v4.address, "127.0.0.1");
  EXPECT_TRUE(v4.is_loopback);
  // Debian's entry for the host's own name.
  const auto debian = peer_address(across("127.0.1.1"));
  EXPECT_EQ(debian.resolved, "127.0.1.1");
  EXPECT_TRUE(debian.is_loopback);
}

TEST(PeerAddress, IsOnTheInterfaceThatTheUserNames) {
  auto environment = across("no-such-host.invalid");
  environment.interface = "lo";
  EXPECT_EQ(peer_address(environment).interface, "lo");
  EXPECT_TRUE(peer_address(environment).is_loopback);
}

TEST(PeerAddress, AnInterfaceThatIsNotThereIsAnErrorThatListsThem) {
  auto environment = across("127.0.0.1");
  environment.interface = "nowhere7";
  EXPECT_THAT(
      error_of(environment),
      AllOf(
          HasSubstr("GLOO_SOCKET_IFNAME='nowhere7'"),
          HasSubstr(host_name()),
          HasSubstr("lo")));
  environment.interface = "lo,nowhere7";
  EXPECT_THAT(error_of(environment), HasSubstr("several"));
}

TEST(PeerAddress, AMasterThatCannotBeResolvedIsAnErrorThatNamesTheHost) {
  EXPECT_THAT(
      error_of(across("no-such-host.invalid")),
      AllOf(
          HasSubstr("host " + host_name() + " cannot resolve"),
          HasSubstr("MASTER_ADDR='no-such-host.invalid'")));
}

TEST(Loopback, IsRecognisedByItsNames) {
  for (const char* name : {"localhost", "127.0.0.1", "127.3.2.1", "::1"})
    EXPECT_TRUE(is_loopback_name(name)) << name;
  for (const char* name :
       {"", "10.0.0.1", "0.0.0.0", "::", "node0", "128.0.0.1"})
    EXPECT_FALSE(is_loopback_name(name)) << name;
}

TEST(Loopback, BindsASocketToTheNamedAddress) {
  for (const auto& each :
       {std::pair{"localhost", "127.0.0.1"}, {"127.3.2.1", "127.3.2.1"}}) {
    const int listener = listen_on_loopback(each.first, 0);
    sockaddr_in bound{};
    socklen_t length = sizeof(bound);
    ASSERT_EQ(
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &length),
        0);
    EXPECT_STREQ(::inet_ntoa(bound.sin_addr), each.second);
    const int port = ntohs(bound.sin_port);
    EXPECT_THAT(
        [&] { listen_on_loopback(each.first, port); },
        ThrowsMessage<CommError>(
            AllOf(HasSubstr(std::to_string(port)), HasSubstr("MASTER_PORT"))));
    ::close(listener);
  }
}

}  // namespace
}  // namespace brigade
