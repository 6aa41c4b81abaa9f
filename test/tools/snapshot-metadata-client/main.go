// The client library of Kubernetes' external-snapshot-metadata as a program. With the devices of two
// volumes, it does what upstream's snapshot-metadata-verifier does, and otherwise what its
// snapshot-metadata-lister does. These two are modules of their own, which the module proxy does not have.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/iterator"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var args iterator.Args
	var source, target string
	var maxResults int
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig of the caller")
	flag.StringVar(&args.Namespace, "n", "", "the namespace of the VolumeSnapshots")
	flag.StringVar(&args.SnapshotName, "s", "", "the VolumeSnapshot")
	flag.StringVar(&args.PrevSnapshotName, "p", "", "the earlier VolumeSnapshot")
	flag.StringVar(&args.PrevSnapshotID, "P", "", "the handle of the earlier snapshot")
	flag.StringVar(&args.SANamespace, "service-account-namespace", "", "the namespace of the token's account")
	flag.StringVar(&args.SAName, "service-account", "", "the account of the token")
	flag.Int64Var(&args.StartingOffset, "starting-offset", 0, "where to begin")
	flag.IntVar(&maxResults, "max-results", 0, "the most blocks of a message")
	flag.StringVar(&source, "src", "", "the device with the snapshot's content")
	flag.StringVar(&target, "tgt", "", "the device with the earlier snapshot's content, or nothing")
	flag.Parse()
	args.MaxResults = int32(maxResults)

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	if args.Clients, err = iterator.BuildClients(config); err != nil {
		return err
	}
	if source == "" {
		args.Emitter = &iterator.JSONEmitter{Writer: os.Stdout}
		return iterator.GetSnapshotMetadata(context.Background(), args)
	}
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	args.Emitter = &iterator.VerifierEmitter{SourceDevice: from, TargetDevice: to}
	if err := iterator.GetSnapshotMetadata(context.Background(), args); err != nil {
		return err
	}
	return to.Sync()
}
